-- check_batch(batch) -> nil; or the routing if an outdated version selected the queues; or false if
--   an out-of-line body does not exist. Without nil, the script must end before it changes anything
-- add_message(message, mark and ID of its out-of-line body, by default '@' and ID)
--   -> number of its queues that exist
-- write_messages(): write all added messages

-- include queues

local messages_by_queue, total = {}, 0
local function check_batch(batch)
  if #batch.messages > 0 and batch.version ~= read_version() then return read_routing() end
  for _, message in ipairs(batch.messages) do
    if message.body ~= '' and call('EXISTS', prefix .. 'b:' .. message.body) == 0 then
      return false
    end
  end
end
local function add_message(message, mark)
  -- 2^49 numbers for each priority: a place is an integer that a double holds.
  local first_place, count = (9 - message.priority) * 562949953421312, 0
  mark = mark or message.body ~= '' and '@' .. message.body or ''
  for _, queue in ipairs(message.queues) do
    if messages_by_queue[queue] == nil then
      local exists = message.is_bound or call('SISMEMBER', prefix .. 'qs', queue) == 1
      messages_by_queue[queue] = exists and {}
    end
    local messages = messages_by_queue[queue]
    if messages then
      messages[#messages + 1] = {first_place, message.data, mark}
      count = count + 1
    end
  end
  if count > 0 and string.sub(mark, 1, 1) == '@' then
    call('PEXPIRE', prefix .. 'b:' .. message.body, BODY_MS)
  end
  total = total + count
  return count
end
local function write_messages()
  if total == 0 then return end
  local number = call('HINCRBY', meta_key, 'n', total) - total
  for queue, messages in pairs(messages_by_queue) do
    if messages then
      local places = {}
      for i, message in ipairs(messages) do
        number = number + 1
        places[2 * i - 1] = string.format('%.0f', message[1] + number)
        places[2 * i] = number .. message[3] .. ' ' .. message[2]
      end
      call('ZADD', queue_key(queue), unpack(places))
      -- A queue that was empty has a new key, which has no expiry.
      if wake(queue) or call('ZCARD', queue_key(queue)) == #messages then prolong_queue(queue) end
    end
  end
end
