-- Result: version of the routing, bindings; format of the keys, or nil if there are none
--
-- Changes nothing. Each new connection runs this script first, and ends if it does not read the
-- format.

-- include queues

local routing = read_routing()
routing[3] = call('HGET', meta_key, 'f')
return routing
