-- Result: 1 if all keys were deleted, else 0
--
-- Removes a consumer and requeues its messages. The last one deletes all keys, unless messages
-- exist.

-- include put_back
-- include drop_queue

first_write()
local time, is_undelivered = now(), {}
for _, name in ipairs(undelivered) do is_undelivered[name] = true end
if consumer ~= '' then remove_consumer(consumer, is_undelivered) end
if call('ZCOUNT', consumers_key, '(' .. time - GONE_MS, '+inf') > 0 then return 0 end
for _, other in ipairs(call('ZRANGE', consumers_key, 0, -1)) do remove_consumer(other, {}) end
for _, queue in ipairs(call('ZRANGEBYSCORE', prefix .. 'own', '-inf', time - GONE_MS)) do
  drop_queue(queue)
end
local queues = call('SMEMBERS', prefix .. 'qs')
for _, queue in ipairs(queues) do
  if call('EXISTS', queue_key(queue)) == 1 then return 0 end
end
for _, queue in ipairs(queues) do call('DEL', prefix .. 'bell:' .. queue) end
for _, key in ipairs({'m', 'b', 'qs', 'own', 'c'}) do call('DEL', prefix .. key) end
return 1
