-- Argument: milliseconds
--
-- Removes holders that have no rows and whose last heartbeat is older than this.

-- include row

for _, holder in ipairs(call('ZRANGEBYSCORE', P .. 'beats', '-inf', now() - ARGV[1])) do
  if call('EXISTS', P .. 'held:' .. holder) == 0 then call('ZREM', P .. 'beats', holder) end
end
