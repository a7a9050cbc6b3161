-- Argument: queue
-- Result: number of waiting messages
--
-- Changes nothing.

return redis.call('ZCARD', KEYS[1] .. 'q:' .. ARGV[1])
