-- Result: number of waiting messages
--
-- Deletes the waiting messages, and the queue with its bindings if `is_deleted`. Otherwise messages
-- that consumers have taken stay.

-- include drop_queue

return is_deleted and drop_queue(queue) or purge(queue)
