-- Argument: queue
-- Result: number of waiting messages
--
-- Deletes the queue with its messages and bindings.

-- include queues
-- include drop_queue

return drop_queue(ARGV[1])
