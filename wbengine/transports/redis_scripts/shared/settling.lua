-- settle_messages(consumer, queue, numbers): acknowledge messages -> number that the consumer had

-- include delete_messages

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
