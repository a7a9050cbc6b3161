-- Arguments: seconds after which a silent consumer is dead, calling consumer or '', number of its
--   owned queues, queue..., consumed queues...
-- Result: number of dead consumers
--
-- Prolongs keys in use, requeues the messages of dead consumers and deletes the queues of dead
-- owners. After a pause in which no process called this script, silent consumers first get time to
-- report.

-- include put_back
-- include drop_queue
-- include first_write

local t, dead = now(), ARGV[1] * 1000
for _, key in ipairs({'m', 'x', 'b', 'qs', 'own', 'c'}) do call('PEXPIRE', P .. key, TTL) end
-- Who has no room for a long time takes nothing.
if ARGV[2] ~= '' then call('ZADD', C, 'XX', t, ARGV[2]) end
for i = 4, #ARGV do
  local queue = ARGV[i]
  if i <= ARGV[3] + 3 and call('ZSCORE', P .. 'own', queue) then
    call('ZADD', P .. 'own', t, queue)
  end
  call('PEXPIRE', P .. 'q:' .. queue, TTL)
  call('PEXPIRE', P .. 'd:' .. queue, TTL)
end
-- After a gap longer than `dead` the server may have been down: consumers get time to report.
local last = tonumber(call('HGET', M, 't') or 0)
if t - last > dead then call('HSET', M, 'since', t) end
call('HSET', M, 't', t)
local seen = t - call('HGET', M, 'since')
local found = {}
if seen >= dead then
  found = call('ZRANGEBYSCORE', C, '-inf', t - dead, 'LIMIT', 0, 50)
  for _, who in ipairs(found) do bury(who, {}) end
end
if seen >= OWNED then
  local left = call('ZRANGEBYSCORE', P .. 'own', '-inf', t - OWNED, 'LIMIT', 0, 50)
  for _, queue in ipairs(left) do drop(queue) end
end
return #found
