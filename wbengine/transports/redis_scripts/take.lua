-- Arguments: those of take_messages()
-- Result: that of take_messages()
--
-- Moves messages from queues to the consumer and claims the rows of requests, in one step. A
--   message
-- is always either in its queue or assigned to a consumer.

-- include queues
-- include take_messages

first_write()
return take_messages(1, #ARGV, now())
