-- Arguments: name of a queue or '*', reason and sender as JSON
-- Result: nil
--
-- Lets `take` claim no more jobs of a queue whose flows have not begun.

-- include board

redis.call('HSET', pauses, ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
