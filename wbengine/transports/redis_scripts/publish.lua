-- Arguments: version of the routing that selected the queues, out-of-line bodies as `n:ID ...` (n
--   from 0), (priority, message, number of its queues, queue...)...
-- Result: number of queues for each message; or the result of `read_routes` if the version differs;
--   or nil if a body does not exist
--
-- Publishes all messages or none. An outdated routing, a missing body and a full server change
-- nothing.

-- include publishing

local refusal = check_batch()
if refusal ~= nil then return refusal end
local counts, i = {}, 3
while i <= #ARGV do
  local stop, count, body = i + 2 + ARGV[i + 2], 0, body_mark(#counts + 1)
  for k = i + 3, stop do count = count + add_message(ARGV[k], ARGV[i], ARGV[i + 1], body) end
  counts[#counts + 1] = count
  i = stop + 1
end
write_messages()
return counts
