-- Arguments: consumer, queue, number
--
-- Acknowledges a request that is not run, and undoes its claim. A message that was requeued
-- meanwhile stays in its queue.

-- include put_back

first_write()
return_message(ARGV[1], ARGV[2] .. ' ' .. ARGV[3], false, {}, true)
