-- Arguments: consumer, queue, number...
-- Result: number of messages that the consumer had
--
-- Acknowledges messages. Messages that were requeued meanwhile stay in their queue.

-- include queues
-- include settling

first_write()
return settle_messages(ARGV[1], ARGV[2], {unpack(ARGV, 3)})
