-- Result: nil; or the names of the paused queues, if this one is not paused
--
-- Ends a pause and notifies listeners.

-- include board

if redis.call('HDEL', pauses, name) == 0 then return redis.call('HKEYS', pauses) end
redis.pcall('PUBLISH', jobs, '')
