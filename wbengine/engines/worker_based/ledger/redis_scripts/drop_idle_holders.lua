-- Argument: milliseconds
--
-- Removes holders that have no rows and whose last heartbeat is older than this.

-- include row

for _, holder in ipairs(call('ZRANGEBYSCORE', prefix .. 'beats', '-inf', now() - ARGV[1])) do
  if call('EXISTS', prefix .. 'held:' .. holder) == 0 then
    call('ZREM', prefix .. 'beats', holder)
  end
end
