-- Result: number of queues for each message; or version and bindings if the version differs;
--   or nil if an out-of-line body does not exist
--
-- Publishes all messages or none. An outdated routing, a missing body and a full server change
-- nothing.

-- include publishing

local refusal = check_batch(batch)
if refusal ~= nil then return refusal end
local counts = {}
for i, message in ipairs(batch.messages) do counts[i] = add_message(message) end
write_messages()
return counts
