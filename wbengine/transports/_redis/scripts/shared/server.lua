-- prefix: prefix of all keys
-- meta_key, consumers_key: keys of the data about the queues, and of the consumers
-- call: redis.call
-- first_write(): a write that needs no memory. A server without free memory refuses none of the
--   writes that follow
-- now() -> time of the server in milliseconds, at the first call
-- queue_key(queue) -> key of its waiting messages
-- held_key(consumer) -> key of the messages that a consumer has

local prefix = KEYS[1]
local meta_key, consumers_key = prefix .. 'm', prefix .. 'c'
local call = redis.call
local function first_write() call('PEXPIRE', meta_key, UNUSED_KEY_MS) end
local current_time
local function now()
  if not current_time then
    local time = call('TIME')
    current_time = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return current_time
end
local function queue_key(queue) return prefix .. 'q:' .. queue end
local function held_key(consumer) return prefix .. 'h:' .. consumer end
