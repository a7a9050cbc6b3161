-- Result: version of the routing, exchanges with their kinds, bindings
--
-- Changes nothing.

-- include routing

return {version, call('HGETALL', P .. 'x'), call('HKEYS', P .. 'b')}
