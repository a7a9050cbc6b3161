-- return_message(consumer, field of its messages, delivered, undelivered messages, refused)
--   -> 1 if the consumer had the message, else 0
-- remove_consumer(consumer, undelivered messages): remove a consumer and requeue its messages
--
-- A message returns to its queue. A refused one is deleted, and one whose queue does not exist. A
-- message that was not delivered is not marked as redelivered, and its claim is undone.

-- include queues
-- include claims
-- include settling

local function return_message(consumer, field, delivered, undelivered, refused)
  local messages_key = held_key(consumer)
  local entry = call('HGET', messages_key, field)
  if not entry then return 0 end
  call('HDEL', messages_key, field)
  local place, take_number, start = string.match(entry, '^(%S+) (%S+) ()')
  local data = string.sub(entry, start)
  local queue, number, mark = string.match(field, '^(%S+) (%d[^r]*)(r?)$')
  delivered = delivered
    and not (undelivered[take_number] or undelivered[take_number .. ':' .. number .. mark])
  if refused or call('SISMEMBER', prefix .. 'qs', queue) == 0 then
    delete_body(number)
  else
    local returned = number .. (delivered and 'r' or mark)
    call('ZADD', queue_key(queue), place, returned .. ' ' .. data)
    prolong_queue(queue)
    wake(queue)
  end
  local id = not delivered and read_label(data)
  if id then
    local claim_name = consumer .. ':' .. take_number .. ':' .. number .. mark
    local row = read_row(id)
    if row and row.claim == claim_name then reopen_row(id, row) end
  end
  return 1
end
local function remove_consumer(consumer, undelivered)
  for _, field in ipairs(call('HKEYS', held_key(consumer))) do
    if field ~= '' then return_message(consumer, field, true, undelivered) end
  end
  call('ZREM', consumers_key, consumer)
  call('DEL', held_key(consumer), prefix .. 'n:' .. consumer)
end
