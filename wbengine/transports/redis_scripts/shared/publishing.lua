-- check_batch() -> nil; or the routing if an outdated version selected the queues; or false if an
--   out-of-line body does not exist. Without nil, the script must end before it changes anything
-- add_message(queue, priority, message, mark and ID of an out-of-line body, or '')
--   -> 1 if the queue exists, else 0
-- write_messages(): write all added messages
-- body_mark(n) -> mark and ID of the out-of-line body of message n, or ''

-- include queues
-- include routing

local messages_by_queue, total, bodies = {}, 0, {}
local function check_batch()
  if ARGV[1] ~= read_version() then return read_routing() end
  for n, id in string.gmatch(ARGV[2], '(%d+):(%x+)') do
    if call('EXISTS', prefix .. 'b:' .. id) == 0 then return false end
    bodies[n + 1] = id
  end
end
local function add_message(queue, priority, data, body)
  if messages_by_queue[queue] == nil then
    messages_by_queue[queue] = call('SISMEMBER', prefix .. 'qs', queue) == 1 and {}
  end
  local messages = messages_by_queue[queue]
  if not messages then return 0 end
  -- 2^49 numbers for each priority: a place is an integer that a double holds.
  messages[#messages + 1] = {(9 - priority) * 562949953421312, data, body}
  if string.sub(body, 1, 1) == '@' then
    call('PEXPIRE', prefix .. 'b:' .. string.sub(body, 2), BODY_MS)
  end
  total = total + 1
  return 1
end
local function write_messages()
  if total == 0 then return end
  local number = call('HINCRBY', meta_key, 'n', total) - total
  for queue, messages in pairs(messages_by_queue) do
    if messages then
      local queue_key = prefix .. 'q:' .. queue
      local data, places = {}, {}
      for i, message in ipairs(messages) do
        number = number + 1
        data[2 * i - 1], data[2 * i] = number, message[2]
        places[2 * i - 1] = string.format('%.0f', message[1] + number)
        places[2 * i] = number .. message[3]
      end
      call('HSET', data_key(queue), unpack(data))
      call('ZADD', queue_key, unpack(places))
      -- A queue that was empty has new keys, which have no expiry.
      if wake(queue) or call('ZCARD', queue_key) == #messages then prolong_queue(queue) end
    end
  end
end
local function body_mark(n) return bodies[n] and '@' .. bodies[n] or '' end
