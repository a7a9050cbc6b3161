-- Argument: binding as `exchange NUL queue NUL key`
--
-- Creates the binding unless it exists. A new binding changes the version of the routing, so that
-- publishers with the old routing read it again.

-- include queues

first_write()
if call('HSET', prefix .. 'b', ARGV[1], 1) == 1 then call('HINCRBY', meta_key, 'v', 1) end
call('PEXPIRE', prefix .. 'b', UNUSED_KEY_MS)
