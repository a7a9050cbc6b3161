-- read_row(id) -> epoch, state, holder, result, ID of its body, milliseconds to keep its result
-- first_write(): a write that needs no memory. A server without free memory refuses none of the
--   writes that follow
-- is_held_by(holder, row, epoch): also true for any holder if the server lost the real one
-- remove_row(id, holder or false, ID of the body or nil)

-- include server
-- include ledger

local function read_row(id)
  local row = call('HMGET', prefix .. 'r:' .. id, 'e', 's', 'h', 'd', 'b', 't', 'l')
  local incarnation = table.remove(row)
  if row[3] == '' then row[3] = false end
  if row[2] == 'open' and is_forgotten(incarnation) then row[2], row[3] = 'claimed', FORGOTTEN end
  return row
end
local function first_write() call('PEXPIRE', prefix .. 'rows', LEDGER_MS) end
local function is_held_by(holder, row, epoch)
  return row[1] == epoch and row[2] == 'claimed'
    and (row[3] == holder or row[3] == FORGOTTEN)
end
local function remove_row(id, holder, body)
  call('DEL', prefix .. 'r:' .. id)
  if body then call('DEL', prefix .. 'b:' .. body) end
  call('ZREM', prefix .. 'rows', id)
  if holder then call('SREM', prefix .. 'held:' .. holder, id) end
end
