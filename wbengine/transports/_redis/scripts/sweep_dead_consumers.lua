-- Result: number of dead consumers
--
-- Prolongs keys in use, requeues the messages of dead consumers and deletes the queues of dead
-- owners. After a pause in which no process called this script, silent consumers first get time to
-- report.

-- include put_back
-- include drop_queue

first_write()
local time, dead_ms = now(), dead_after * 1000
for _, key in ipairs({'m', 'b', 'qs', 'own', 'c'}) do
  call('PEXPIRE', prefix .. key, UNUSED_KEY_MS)
end
-- A consumer without capacity takes nothing, so it reports only here.
if consumer ~= '' then
  call('ZADD', consumers_key, 'XX', time, consumer)
  call('PEXPIRE', held_key(consumer), UNUSED_KEY_MS)
end
for _, queue in ipairs(owned) do
  call('ZADD', prefix .. 'own', 'XX', time, queue)
  prolong_queue(queue)
end
for _, queue in ipairs(consumed) do prolong_queue(queue) end
-- After a long gap the server may have been down: consumers get time to report.
local last_time = tonumber(call('HGET', meta_key, 't') or 0)
if time - last_time > math.min(dead_ms, GONE_MS) then call('HSET', meta_key, 'since', time) end
call('HSET', meta_key, 't', time)
local observed_ms = time - call('HGET', meta_key, 'since')
local dead_consumers = {}
if observed_ms >= dead_ms then
  dead_consumers = call('ZRANGEBYSCORE', consumers_key, '-inf', time - dead_ms, 'LIMIT', 0, 50)
  for _, dead in ipairs(dead_consumers) do remove_consumer(dead, {}) end
end
if observed_ms >= OWNED_QUEUE_MS then
  local oldest = time - OWNED_QUEUE_MS
  local silent_queues = call('ZRANGEBYSCORE', prefix .. 'own', '-inf', oldest, 'LIMIT', 0, 50)
  for _, queue in ipairs(silent_queues) do drop_queue(queue) end
end
return #dead_consumers
