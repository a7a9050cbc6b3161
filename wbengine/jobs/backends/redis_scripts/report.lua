-- Result: nil
--
-- Stores that a conductor serves these queues now. Reports of the day before are deleted.

-- include board

for _, name in ipairs(names) do redis.call('ZADD', served, now, name) end
redis.call('ZREMRANGEBYSCORE', served, '-inf', now - 86400000)
