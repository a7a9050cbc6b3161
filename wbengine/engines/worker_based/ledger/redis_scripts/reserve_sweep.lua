-- Argument: milliseconds between two sweeps
-- Result: 1 if a sweep is due, which is then reserved for the caller
--
-- Of several callers within this time, one gets 1.

return redis.call('SET', KEYS[1] .. 'swept', 1, 'NX', 'PX', ARGV[1]) and 1 or 0
