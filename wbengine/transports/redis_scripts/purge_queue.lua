-- Argument: queue
-- Result: number of waiting messages
--
-- Deletes the waiting messages. Messages that consumers have taken stay.

-- include queues
-- include delete_messages

return purge(ARGV[1])
