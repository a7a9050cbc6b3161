-- return_message(consumer, field of its messages, delivered, undelivered messages, refused)
--   -> 1 if the consumer had the message, else 0
-- remove_consumer(consumer, undelivered messages): remove a consumer and requeue its messages
--
-- A message returns to its queue; a refused one is deleted. A message that was not delivered is not
-- marked as redelivered, and its claim is undone.

-- include queues
-- include claims
-- include releasing
-- include settling

local function return_message(consumer, field, delivered, undelivered, refused)
  local messages_key = held_key(consumer)
  local entry = call('HGET', messages_key, field)
  if not entry then return 0 end
  call('HDEL', messages_key, field)
  local place, take_number = string.match(entry, '^(%S+) (%S+)$')
  local queue, number, mark = string.match(field, '^(%S+) (%d[^r]*)(r?)$')
  delivered = delivered
    and not (undelivered[take_number] or undelivered[take_number .. ':' .. number .. mark])
  local data = call('HGET', data_key(queue), string.match(number, '^%d+'))
  if refused or not data then delete_messages(queue, {number}) end
  if data then
    if not refused then
      call('ZADD', prefix .. 'q:' .. queue, place, number .. (delivered and 'r' or mark))
      prolong_queue(queue)
      wake(queue)
    end
    local id = not delivered and read_label(data)
    if id then
      local claim_name = consumer .. ':' .. take_number .. ':' .. number .. mark
      local row = call('HMGET', prefix .. 'r:' .. id, 'k', 'h')
      if row[1] == claim_name then release_row(id, row[2]) end
    end
  end
  return 1
end
local function remove_consumer(consumer, undelivered)
  for _, field in ipairs(call('HKEYS', held_key(consumer))) do
    return_message(consumer, field, true, undelivered)
  end
  call('ZREM', consumers_key, consumer)
  call('DEL', prefix .. 'n:' .. consumer)
end
