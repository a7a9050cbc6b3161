-- Arguments: id...
--
-- Deletes rows in any state, with their results.

-- include row

local rows, bodies = {}, {}
for i, id in ipairs(ARGV) do
  rows[i] = P .. 'r:' .. id
  local there = call('HMGET', rows[i], 'h', 'b')
  if there[1] and there[1] ~= '' then call('SREM', P .. 'held:' .. there[1], id) end
  if there[2] then bodies[#bodies + 1] = P .. 'b:' .. there[2] end
end
if #bodies > 0 then call('DEL', unpack(bodies)) end
call('DEL', unpack(rows))
call('ZREM', P .. 'rows', unpack(ARGV))
