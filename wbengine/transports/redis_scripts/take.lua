-- Arguments: those of take()
-- Result: that of take()
--
-- Moves messages from queues to the consumer and claims the rows of requests, in one step. A
-- message is always either in its queue or assigned to a consumer.

-- include queues
-- include label
-- include taking
-- include first_write

return take(1, #ARGV, now())
