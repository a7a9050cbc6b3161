-- Argument: binding as `exchange NUL queue NUL key`
--
-- Removes the binding. This changes the version of the routing, if the binding existed.

-- include queues

first_write()
if call('HDEL', prefix .. 'b', ARGV[1]) == 1 then call('HINCRBY', meta_key, 'v', 1) end
