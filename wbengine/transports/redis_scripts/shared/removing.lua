-- remove_rows(ids): delete rows in any state, with their results

-- include server

local function remove_rows(ids)
  if #ids == 0 then return end
  local keys = {}
  for _, id in ipairs(ids) do
    local row_key = prefix .. 'r:' .. id
    local row = call('HMGET', row_key, 'h', 'b')
    if row[1] and row[1] ~= '' then call('SREM', prefix .. 'held:' .. row[1], id) end
    keys[#keys + 1] = row_key
    if row[2] then keys[#keys + 1] = prefix .. 'b:' .. row[2] end
  end
  call('DEL', unpack(keys))
  call('ZREM', prefix .. 'rows', unpack(ids))
end
