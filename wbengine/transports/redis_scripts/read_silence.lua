-- Result: milliseconds since the last heartbeat of the holder, or nil if it has none
--
-- Changes nothing.

-- include server

local heartbeat = call('ZSCORE', prefix .. 'beats', holder)
return heartbeat and now() - heartbeat
