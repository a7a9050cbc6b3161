-- Argument: binding as `exchange NUL queue NUL key`
--
-- Removes the binding. This changes the version of the routing, if the binding existed.

-- include queues
-- include first_write

if call('HDEL', P .. 'b', ARGV[1]) == 1 then call('HINCRBY', M, 'v', 1) end
