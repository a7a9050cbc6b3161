-- Argument: holder
-- Result: milliseconds since its last heartbeat, or nil if it has none
--
-- Changes nothing.

-- include row

local beat = call('ZSCORE', P .. 'beats', ARGV[1])
return beat and now() - beat
