-- fitting(queue, limit, bytes) -> number of the next messages that fit into a batch with so many
--   bytes, the bytes of the batch with them, whether the next message does not fit
-- take(first, last, time) -> false if the consumer is unknown; else the messages: group, queue,
--   number, data, result of the claim
--
-- The arguments from first to last are: consumer, number of the take, holder for claims or '',
--   digest of
-- its ledger, 1: record a report and a heartbeat, and groups: (limit, number of queues, queue...)

-- include queues
-- include ledger
-- include claim_row

local function fitting(queue, most, bytes)
  local count = 0
  for _, number in ipairs(call('ZRANGE', P .. 'q:' .. queue, 0, most - 1)) do
    local key, body = string.match(number, '^(%d+)[@&]?(%x*)')
    local size = call('HSTRLEN', P .. 'd:' .. queue, key)
    if body ~= '' then size = size + call('STRLEN', P .. 'b:' .. body) end
    if bytes > 0 and bytes + size > MAX_BATCH_BYTES then return count, bytes, true end
    count, bytes = count + 1, bytes + size
  end
  return count, bytes, false
end
local function take(first, last, t)
  local who, take, holder, digest = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  if not call('ZSCORE', C, who) then return false end
  if ARGV[first + 4] == '1' then
    call('ZADD', C, t, who)
    if holder ~= '' then call('ZADD', P .. 'beats', t, holder) end
  end
  local h, taken, group, i = P .. 'h:' .. who, {}, 0, first + 5
  local claims, granted, last_granted = holder ~= '' and ledger()[1] == digest, 0, nil
  local bytes, full = 0, false  -- of this batch
  if claims and is_held(t) then return {} end
  while i <= last do
    local room, final = tonumber(ARGV[i]), i + 1 + ARGV[i + 1]
    i = i + 2
    while i <= final do
      local queue = ARGV[i]
      local q, d = P .. 'q:' .. queue, P .. 'd:' .. queue
      local most, count = room, 0
      if most > 0 and not full then count, bytes, full = fitting(queue, most, bytes) end
      local popped = count > 0 and call('ZPOPMIN', q, count) or {}
      if #popped > 0 then
        local numbers, held = {}, {}
        for k = 1, #popped, 2 do numbers[#numbers + 1] = string.match(popped[k], '^%d+') end
        for k, data in ipairs(call('HMGET', d, unpack(numbers))) do
          local number, place = popped[2 * k - 1], popped[2 * k]
          if data then
            held[#held + 1] = queue .. ' ' .. number
            held[#held + 1] = place .. ' ' .. take
            local said = false
            if claims then
              local id, epoch, of = label(data)
              if of == digest then
                said = claim(id, epoch, holder, who .. ':' .. take .. ':' .. number)
                if said[1] == 'GRANTED' then granted, last_granted = granted + 1, said end
              end
            end
            taken[#taken + 1] = {group, queue, number, data, said}
            room = room - 1
          end
        end
        if #held > 0 then call('HSET', h, unpack(held)) end
      end
      -- Who took leaves the bell to the next one: it rings once for any number of messages.
      if (full or (count > 0 and count == most)) and call('ZCARD', q) > 0 then ring(queue) end
      i = i + 1
    end
    group = group + 1
  end
  if #taken > 0 then call('PEXPIRE', h, TTL) end
  if granted > 0 then last_granted[5] = call('HINCRBY', P .. 'server', 'count', granted) end
  return taken
end
