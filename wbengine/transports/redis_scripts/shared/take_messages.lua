-- take_messages(order) -> false if the consumer is unknown; else the messages: group, queue, number,
--   data, result of the claim
--
-- Without a report, the first write needs no memory, like those of `first_write`.

-- include queues
-- include claims

-- Return the number of the next messages that fit into a batch that has so many bytes, the bytes of
-- the batch with them, and whether the next message does not fit.
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
local function take_messages(order)
  local consumer, holder = order.consumer, order.holder
  if not call('ZSCORE', consumers_key, consumer) then return false end
  if order.reports then
    first_write()
    call('ZADD', consumers_key, now(), consumer)
    if holder ~= '' then call('ZADD', prefix .. 'beats', now(), holder) end
  end
  local messages_key, taken = held_key(consumer), {}
  local claims, granted_ids, last_granted = nil, {}, nil
  local bytes, full = 0, false  -- of the batch
  for index, group in ipairs(order.groups) do
    local capacity = tonumber(group[1])
    for _, queue in ipairs(group[2]) do
      local queue_key = prefix .. 'q:' .. queue
      local limit, count = capacity, 0
      if limit > 0 and not full then count, bytes, full = count_fitting(queue, limit, bytes) end
      if count > 0 and claims == nil then
        claims = holder ~= '' and ledger_info()[1] == order.digest
        if claims and refuses_claims() then return {} end
      end
      local popped = count > 0 and call('ZPOPMIN', queue_key, count) or {}
      if #popped > 0 then
        local numbers, held = {}, {}
        for k = 1, #popped, 2 do numbers[#numbers + 1] = string.match(popped[k], '^%d+') end
        for k, data in ipairs(call('HMGET', data_key(queue), unpack(numbers))) do
          local number, place = popped[2 * k - 1], popped[2 * k]
          if data then
            held[#held + 1] = queue .. ' ' .. number
            held[#held + 1] = place .. ' ' .. order.number
            local reply = false
            if claims then
              local id, epoch, ledger_digest = read_label(data)
              if ledger_digest == order.digest then
                local name = consumer .. ':' .. order.number .. ':' .. number
                reply = claim_row(id, epoch, holder, name)
                if reply[1] == 'GRANTED' then
                  granted_ids[#granted_ids + 1], last_granted = id, reply
                end
              end
            end
            taken[#taken + 1] = {index - 1, queue, number, data, reply}
            capacity = capacity - 1
          end
        end
        if #held > 0 then call('HSET', messages_key, unpack(held)) end
      end
      -- One wake-up announces any number of messages, so the next consumer needs another one.
      if (full or (count > 0 and count == limit)) and call('ZCARD', queue_key) > 0 then
        wake(queue)
      end
    end
  end
  if #taken > 0 then call('PEXPIRE', messages_key, UNUSED_KEY_MS) end
  if #granted_ids > 0 then
    call('SADD', prefix .. 'held:' .. holder, unpack(granted_ids))
    last_granted[5] = call('HINCRBY', prefix .. 'server', 'count', #granted_ids)
  end
  return taken
end
