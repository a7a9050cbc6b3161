-- Result: version of the routing, exchanges with their kinds, bindings
--
-- Changes nothing.

-- include routing

return read_routing()
