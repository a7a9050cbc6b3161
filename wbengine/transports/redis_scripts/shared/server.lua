-- P: prefix of all keys
-- call: redis.call
-- now() -> time of the server in milliseconds

local P = KEYS[1]
local call = redis.call
local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
