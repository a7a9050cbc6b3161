-- Arguments: consumer, queue, number, 1: it was delivered
-- Result: 1 if the consumer had the message, else 0
--
-- Returns a message to its old place. A message that was not delivered is not marked as
-- redelivered, and its claim is undone.

-- include put_back

first_write()
return return_message(ARGV[1], ARGV[2] .. ' ' .. ARGV[3], ARGV[4] == '1', {})
