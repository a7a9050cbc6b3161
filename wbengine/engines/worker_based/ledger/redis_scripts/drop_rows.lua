-- Arguments: id...
--
-- Deletes rows in any state, with their results.

-- include row

local row_keys, body_keys = {}, {}
for i, id in ipairs(ARGV) do
  row_keys[i] = prefix .. 'r:' .. id
  local row = call('HMGET', row_keys[i], 'h', 'b')
  if row[1] and row[1] ~= '' then call('SREM', prefix .. 'held:' .. row[1], id) end
  if row[2] then body_keys[#body_keys + 1] = prefix .. 'b:' .. row[2] end
end
if #body_keys > 0 then call('DEL', unpack(body_keys)) end
call('DEL', unpack(row_keys))
call('ZREM', prefix .. 'rows', unpack(ARGV))
