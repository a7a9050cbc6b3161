-- Result: nil
--
-- Lets `take` claim no more jobs of a queue whose flows have not begun.

-- include board

redis.call('HSET', pauses, name, string.format('%.0f', now) .. ' ' .. note)
