-- prolong_queue(queue): set the expiry of its waiting messages
-- wake(queue): wake up a consumer that waits for the queue -> false if there is a wake-up already
-- read_routing() -> version of the routing, bindings

-- include server

local function prolong_queue(queue)
  call('PEXPIRE', queue_key(queue), UNUSED_KEY_MS)
end
local function wake(queue)
  local wake_key = prefix .. 'bell:' .. queue
  local is_new = call('RPUSH', wake_key, 1) == 1
  if is_new then call('PEXPIRE', wake_key, UNUSED_KEY_MS) else call('LPOP', wake_key) end
  return is_new
end
local function read_version()
  local meta = call('HMGET', meta_key, 'id', 'v')
  return (meta[1] or '') .. ':' .. (meta[2] or '')
end
local function read_routing() return {read_version(), call('HKEYS', prefix .. 'b')} end
