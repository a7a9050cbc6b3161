-- read_version() -> version of the routing
-- read_routing() -> the version, exchanges with their kinds, bindings

-- include queues

local function read_version()
  local meta = call('HMGET', meta_key, 'id', 'v')
  return (meta[1] or '') .. ':' .. (meta[2] or '')
end
local function read_routing()
  return {read_version(), call('HGETALL', prefix .. 'x'), call('HKEYS', prefix .. 'b')}
end
