-- version: version of the routing

-- include queues

local m = call('HMGET', M, 'id', 'v')
local version = (m[1] or '') .. ':' .. (m[2] or '')
