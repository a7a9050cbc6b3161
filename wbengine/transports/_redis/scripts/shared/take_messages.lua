-- take_messages(order) -> false if the consumer is unknown; else the messages: group, queue, number,
--   data, result of the claim
--
-- Records a report of the consumer and a heartbeat of the holder, if the last ones are old.
-- Otherwise the first write needs no memory, like those of `first_write`.

-- include queues
-- include claims
-- include reporting

local function return_popped(queue, popped, first)
  for k = first, #popped, 2 do call('ZADD', queue_key(queue), popped[k + 1], popped[k]) end
  prolong_queue(queue)
end
local function take_messages(order)
  local consumer, holder = order.consumer, order.holder
  local reported = call('ZSCORE', consumers_key, consumer)
  if not reported then return false end
  if math.abs(now() - reported) >= REPORT_MS then
    first_write()
    report(consumer, holder)
  end
  local taken = {}
  local claims, granted_ids, last_granted = nil, {}, nil
  local bytes, full = 0, false  -- of the batch
  for index, group in ipairs(order.groups) do
    local max_messages = tonumber(group[1])
    local capacity = max_messages
    for _, queue in ipairs(group[2]) do
      local limit, held = capacity, {}
      local popped = limit > 0 and not full and call('ZPOPMIN', queue_key(queue), limit) or {}
      if #popped > 0 and claims == nil then
        claims = holder ~= '' and ledger_info()[1] == order.digest
        if claims and refuses_claims() then
          return_popped(queue, popped, 1)
          return {}
        end
      end
      for k = 1, #popped, 2 do
        local number, start = string.match(popped[k], '^(%S+) ?()')
        local data, body = string.sub(popped[k], start), string.match(number, '[@&](%x+)')
        local size = #data + (body and call('STRLEN', prefix .. 'b:' .. body) or 0)
        full = bytes > 0 and bytes + size > MAX_BATCH_BYTES
        if full then
          return_popped(queue, popped, k)
          break
        end
        bytes, capacity = bytes + size, capacity - 1
        held[#held + 1] = queue .. ' ' .. number
        held[#held + 1] = popped[k + 1] .. ' ' .. order.number .. ' ' .. data
        local reply = false
        local id, epoch, digest
        if claims then id, epoch, digest = read_label(data) end
        if id and digest == order.digest then
          reply = claim_row(id, epoch, holder, consumer .. ':' .. order.number .. ':' .. number)
          if reply[1] == 'GRANTED' then granted_ids[#granted_ids + 1], last_granted = id, reply end
          bytes = bytes + #reply[4]
        end
        taken[#taken + 1] = {index - 1, queue, number, data, reply}
      end
      if #held > 0 then call('HSET', held_key(consumer), unpack(held)) end
      -- One wake-up announces any number of messages, so the next consumer needs another one. The
      -- wake-up that ended a wait may be that of a later queue than those with the messages.
      local is_limited = full or (capacity == 0 and max_messages > 0)
      if is_limited and call('ZCARD', queue_key(queue)) > 0 then wake(queue) end
    end
  end
  if #granted_ids > 0 then
    call('SADD', prefix .. 'held:' .. holder, unpack(granted_ids))
    last_granted[5] = call('HINCRBY', prefix .. 'server', 'count', #granted_ids)
  end
  return taken
end
