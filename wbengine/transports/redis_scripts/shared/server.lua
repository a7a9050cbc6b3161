-- prefix: prefix of all keys
-- call: redis.call
-- now() -> time of the server in milliseconds
-- data_key(queue) -> key of the messages of a queue
-- held_key(consumer) -> key of the numbers of messages that a consumer has

local prefix = KEYS[1]
local call = redis.call
local function now()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function data_key(queue) return prefix .. 'd:' .. queue end
local function held_key(consumer) return prefix .. 'h:' .. consumer end
