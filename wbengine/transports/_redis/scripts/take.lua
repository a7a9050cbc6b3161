-- Result: that of take_messages()
--
-- Moves messages from queues to the consumer and claims the rows of requests, in one step. A
-- message is always either in its queue or assigned to a consumer.

-- include take_messages

return take_messages(order)
