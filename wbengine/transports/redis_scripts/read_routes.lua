-- Result: version of the routing, exchanges with their kinds, bindings; format of the keys, or nil if
--   there are none
--
-- Changes nothing. Each new connection runs this script first, and ends if it does not read the
-- format.

-- include routing

local routing = read_routing()
routing[4] = call('HGET', meta_key, 'f')
return routing
