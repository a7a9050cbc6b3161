-- Argument: holder
-- Result: milliseconds since its last heartbeat, or nil if it has none
--
-- Changes nothing.

-- include row

local heartbeat = call('ZSCORE', prefix .. 'beats', ARGV[1])
return heartbeat and now() - heartbeat
