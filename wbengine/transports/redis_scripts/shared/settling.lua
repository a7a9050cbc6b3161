-- delete_messages(queue, numbers with marks): delete messages and their bodies
-- settle_messages(consumer, queue, numbers): acknowledge messages -> number that the consumer had

-- include server

local function delete_messages(queue, marked_numbers)
  local numbers, bodies = {}, {}
  for i, number in ipairs(marked_numbers) do
    local body
    numbers[i], body = string.match(number, '^(%d+)@?(%x*)')
    if body ~= '' then bodies[#bodies + 1] = prefix .. 'b:' .. body end
  end
  call('HDEL', data_key(queue), unpack(numbers))
  if #bodies > 0 then call('DEL', unpack(bodies)) end
end
local function settle_messages(consumer, queue, numbers)
  local messages_key, fields, held_fields, held_numbers = held_key(consumer), {}, {}, {}
  for i, number in ipairs(numbers) do fields[i] = queue .. ' ' .. number end
  for i, entry in ipairs(call('HMGET', messages_key, unpack(fields))) do
    if entry then
      held_fields[#held_fields + 1] = fields[i]
      held_numbers[#held_numbers + 1] = numbers[i]
    end
  end
  if #held_fields > 0 then
    call('HDEL', messages_key, unpack(held_fields))
    delete_messages(queue, held_numbers)
  end
  return #held_fields
end
