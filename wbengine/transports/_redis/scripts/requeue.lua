-- Result: number of messages that the consumer had
--
-- Returns messages to their old places, or deletes them if they are refused. A message that was not
-- delivered is not marked as redelivered, and its claim is undone.

-- include put_back

first_write()
local count = 0
for _, field in ipairs(messages) do
  count = count + return_message(consumer, field, is_delivered, {}, is_refused)
end
return count
