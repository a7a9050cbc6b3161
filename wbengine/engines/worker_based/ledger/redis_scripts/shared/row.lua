-- row(id) -> epoch, state, holder, result, id of its body, milliseconds to keep its result
-- is_held_by(holder, row, epoch): also true for any holder if the server lost the real one
-- remove(id, holder or false, ID of the body or nil): delete a row

-- include server
-- include ledger

local function row(id)
  local there = call('HMGET', P .. 'r:' .. id, 'e', 's', 'h', 'd', 'b', 't', 'l')
  local life = table.remove(there)
  if there[3] == '' then there[3] = false end
  if there[2] == 'open' and is_forgotten(life) then there[2], there[3] = 'claimed', FORGOTTEN end
  return there
end
local function is_held_by(holder, there, epoch)
  return there[1] == epoch and there[2] == 'claimed'
    and (there[3] == holder or there[3] == FORGOTTEN)
end
local function remove(id, holder, body)
  call('DEL', P .. 'r:' .. id)
  if body then call('DEL', P .. 'b:' .. body) end
  call('ZREM', P .. 'rows', id)
  if holder then call('SREM', P .. 'held:' .. holder, id) end
end
