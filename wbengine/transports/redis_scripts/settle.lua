-- Result: number of messages that the consumer had
--
-- Acknowledges messages. Messages that were requeued meanwhile stay in their queue.

-- include settling

return settle_messages(consumer, queue, numbers)
