-- read_row(id) -> epoch, state, holder, result, ID of its body, milliseconds to keep its result
-- is_held_by(holder, row, epoch): also true for any holder if the server lost the real one

-- include ledger

local function read_row(id)
  local row = call('HMGET', prefix .. 'r:' .. id, 'e', 's', 'h', 'd', 'b', 't', 'l')
  local incarnation = table.remove(row)
  if row[3] == '' then row[3] = false end
  if row[2] == 'open' and is_forgotten(incarnation) then row[2], row[3] = 'claimed', FORGOTTEN end
  return row
end
local function is_held_by(holder, row, epoch)
  return row[1] == epoch and row[2] == 'claimed'
    and (row[3] == holder or row[3] == FORGOTTEN)
end
