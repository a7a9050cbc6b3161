-- count_fitting(queue, limit, bytes) -> number of the next messages that fit into a batch that has
--   so many bytes, the bytes of the batch with them, whether the next message does not fit
-- take_messages(first, last, time) -> false if the consumer is unknown; else the messages: group,
--   queue, number, data, result of the claim
--
-- The arguments from first to last are: consumer, number of the take, holder for claims or '',
-- digest of its ledger, 1: record a report and a heartbeat, and groups: (limit, number of queues,
-- queue...).

-- include queues
-- include ledger
-- include label
-- include claim_row

local function count_fitting(queue, limit, bytes)
  local count = 0
  for _, number in ipairs(call('ZRANGE', prefix .. 'q:' .. queue, 0, limit - 1)) do
    local key, body = string.match(number, '^(%d+)[@&]?(%x*)')
    local size = call('HSTRLEN', data_key(queue), key)
    if body ~= '' then size = size + call('STRLEN', prefix .. 'b:' .. body) end
    if bytes > 0 and bytes + size > MAX_BATCH_BYTES then return count, bytes, true end
    count, bytes = count + 1, bytes + size
  end
  return count, bytes, false
end
local function take_messages(first, last, time)
  local consumer, take_number = ARGV[first], ARGV[first + 1]
  local holder, digest = ARGV[first + 2], ARGV[first + 3]
  if not call('ZSCORE', consumers_key, consumer) then return false end
  if ARGV[first + 4] == '1' then
    call('ZADD', consumers_key, time, consumer)
    if holder ~= '' then call('ZADD', prefix .. 'beats', time, holder) end
  end
  local messages_key, taken, group, i = held_key(consumer), {}, 0, first + 5
  local claims, granted, last_granted = holder ~= '' and ledger_info()[1] == digest, 0, nil
  local bytes, full = 0, false  -- of the batch
  if claims and refuses_claims(time) then return {} end
  while i <= last do
    local capacity, final = tonumber(ARGV[i]), i + 1 + ARGV[i + 1]
    i = i + 2
    while i <= final do
      local queue = ARGV[i]
      local queue_key = prefix .. 'q:' .. queue
      local limit, count = capacity, 0
      if limit > 0 and not full then count, bytes, full = count_fitting(queue, limit, bytes) end
      local popped = count > 0 and call('ZPOPMIN', queue_key, count) or {}
      if #popped > 0 then
        local numbers, held = {}, {}
        for k = 1, #popped, 2 do numbers[#numbers + 1] = string.match(popped[k], '^%d+') end
        for k, data in ipairs(call('HMGET', data_key(queue), unpack(numbers))) do
          local number, place = popped[2 * k - 1], popped[2 * k]
          if data then
            held[#held + 1] = queue .. ' ' .. number
            held[#held + 1] = place .. ' ' .. take_number
            local reply = false
            if claims then
              local id, epoch, ledger_digest = read_label(data)
              if ledger_digest == digest then
                local name = consumer .. ':' .. take_number .. ':' .. number
                reply = claim_row(id, epoch, holder, name)
                if reply[1] == 'GRANTED' then granted, last_granted = granted + 1, reply end
              end
            end
            taken[#taken + 1] = {group, queue, number, data, reply}
            capacity = capacity - 1
          end
        end
        if #held > 0 then call('HSET', messages_key, unpack(held)) end
      end
      -- One wake-up announces any number of messages, so the next consumer needs another one.
      if (full or (count > 0 and count == limit)) and call('ZCARD', queue_key) > 0 then
        wake(queue)
      end
      i = i + 1
    end
    group = group + 1
  end
  if #taken > 0 then call('PEXPIRE', messages_key, UNUSED_KEY_MS) end
  if granted > 0 then last_granted[5] = call('HINCRBY', prefix .. 'server', 'count', granted) end
  return taken
end
