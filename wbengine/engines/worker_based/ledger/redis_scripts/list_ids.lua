-- Result: ids of all rows
--
-- Changes nothing.

return redis.call('ZRANGE', KEYS[1] .. 'rows', 0, -1)
