-- settle(consumer, queue, numbers): acknowledge messages -> number of those that the consumer had

-- include delete_messages

local function settle(who, queue, given)
  local h, fields, held, numbers = P .. 'h:' .. who, {}, {}, {}
  for i, number in ipairs(given) do fields[i] = queue .. ' ' .. number end
  for i, there in ipairs(call('HMGET', h, unpack(fields))) do
    if there then
      held[#held + 1] = fields[i]
      numbers[#numbers + 1] = given[i]
    end
  end
  if #held > 0 then
    call('HDEL', h, unpack(held))
    forget(queue, numbers)
  end
  return #held
end
