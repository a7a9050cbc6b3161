-- Result: time of the server, (name, time and JSON of a pause)..., (name, time of the last report
--   of a conductor)...
--
-- Reads which queues are paused and served.

-- include board

return {now, redis.call('HGETALL', pauses), redis.call('ZRANGE', served, 0, -1, 'WITHSCORES')}
