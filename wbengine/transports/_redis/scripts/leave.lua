-- Result: 1 if all keys were deleted, else 0
--
-- Removes a consumer, requeues its messages, and undoes the claims of those that were not delivered,
-- also if another process has requeued them because the consumer was silent. The last consumer
-- deletes all keys, unless messages exist. After a pause in which no process called
-- `sweep_dead_consumers`, for example because the server was down, silent consumers and owners first
-- get time to report.

-- include put_back
-- include drop_queue
-- include silence

first_write()
local is_undelivered = {}
for _, name in ipairs(undelivered) do is_undelivered[name] = true end
if consumer ~= '' then remove_consumer(consumer, is_undelivered) end
local claimed_ids = #undelivered > 0 and call('SMEMBERS', prefix .. 'held:' .. holder) or {}
for _, id in ipairs(claimed_ids) do
  local row = read_row(id)
  local claimed_by, take_number, number = string.match(row and row.claim or '', '^(%x+):(%d+):(.+)$')
  if claimed_by == consumer
    and (is_undelivered[take_number] or is_undelivered[take_number .. ':' .. number])
  then
    reopen_row(id, row)
  end
end
if call('ZCOUNT', consumers_key, '(' .. silent_since, '+inf') > 0 then return 0 end
local silent_queues = call('ZRANGEBYSCORE', prefix .. 'own', '-inf', silent_since)
if not had_time() and (#silent_queues > 0 or call('ZCARD', consumers_key) > 0) then return 0 end
for _, other in ipairs(call('ZRANGE', consumers_key, 0, -1)) do remove_consumer(other, {}) end
for _, queue in ipairs(silent_queues) do drop_queue(queue) end
local queues = call('SMEMBERS', prefix .. 'qs')
for _, queue in ipairs(queues) do
  if call('EXISTS', queue_key(queue)) == 1 then return 0 end
end
for _, queue in ipairs(queues) do call('DEL', prefix .. 'bell:' .. queue) end
for _, key in ipairs({'m', 'b', 'qs', 'own', 'c'}) do call('DEL', prefix .. key) end
return 1
