-- Creates or removes a binding. A change of the bindings changes the version of the routing, so
-- that publishers with the old routing read it again.

-- include server

first_write()
local binding = exchange .. '\0' .. queue .. '\0' .. key
local changes = is_bound and call('HSET', prefix .. 'b', binding, 1)
  or call('HDEL', prefix .. 'b', binding)
if changes == 1 then call('HINCRBY', meta_key, 'v', 1) end
call('PEXPIRE', prefix .. 'b', UNUSED_KEY_MS)
