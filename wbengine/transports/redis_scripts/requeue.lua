-- Result: 1 if the consumer had the message, else 0
--
-- Returns a message to its old place, or deletes it if it is refused. A message that was not
-- delivered is not marked as redelivered, and its claim is undone.

-- include put_back

first_write()
return return_message(consumer, queue .. ' ' .. number, is_delivered, {}, is_refused)
