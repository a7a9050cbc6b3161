-- Arguments: version of the routing that selected the queues, out-of-line bodies as `n:ID ...` (n
--   from 0), (priority, message, number of its queues, queue...)...
-- Result: number of queues for each message; or the result of `read_routes` if the version differs;
--   or nil if a body does not exist
--
-- Publishes all messages or none. An outdated routing, a missing body and a full server change
-- nothing.

-- include publishing

local counts, i = {}, 3
while i <= #ARGV do
  local last, count, body = i + 2 + ARGV[i + 2], 0, apart(#counts + 1)
  for k = i + 3, last do count = count + place(ARGV[k], ARGV[i], ARGV[i + 1], body) end
  counts[#counts + 1] = count
  i = last + 1
end
put()
return counts
