-- delete_body(number of a deleted message, with its marks): delete its out-of-line body
-- settle_messages(requests): acknowledge messages, which have a consumer, a queue and a number
--
-- The first write needs no memory, like that of `first_write`.

-- include server

local function delete_body(number)
  local body = string.match(number, '^%d+@(%x+)')
  if body then call('DEL', prefix .. 'b:' .. body) end
end
local function settle_messages(requests)
  local fields = {}
  for _, request in ipairs(requests) do
    local consumer, field = request.consumer, request.queue .. ' ' .. request.number
    if string.find(request.number, '@', 1, true) then
      if call('HDEL', held_key(consumer), field) == 1 then delete_body(request.number) end
    else
      fields[consumer] = fields[consumer] or {}
      table.insert(fields[consumer], field)
    end
  end
  for consumer, names in pairs(fields) do call('HDEL', held_key(consumer), unpack(names)) end
end
