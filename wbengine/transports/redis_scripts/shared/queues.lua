-- meta_key, consumers_key: keys of the data about the queues, and of the consumers
-- first_write(): a write that needs no memory. A server without free memory refuses none of the
--   writes that follow
-- prolong_queue(queue): set the expiry of the messages of the queue
-- wake(queue): wake up a consumer that waits for the queue -> false if there is a wake-up already

-- include server

local meta_key, consumers_key = prefix .. 'm', prefix .. 'c'
local function first_write() call('PEXPIRE', meta_key, UNUSED_KEY_MS) end
local function prolong_queue(queue)
  call('PEXPIRE', prefix .. 'q:' .. queue, UNUSED_KEY_MS)
  call('PEXPIRE', data_key(queue), UNUSED_KEY_MS)
end
local function wake(queue)
  local wake_key = prefix .. 'bell:' .. queue
  if call('EXISTS', wake_key) == 1 then return false end
  call('RPUSH', wake_key, 1)
  call('PEXPIRE', wake_key, UNUSED_KEY_MS)
  return true
end
