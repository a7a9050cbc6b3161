-- put_back(consumer, field of its messages, delivered, undelivered messages, refused) -> 1 if the
--   consumer had the message
-- bury(consumer, undelivered messages): remove a consumer and requeue its messages
--
-- A requeued message that was not delivered is not marked as redelivered, and its claim is undone.

-- include queues
-- include ledger
-- include label
-- include release_row
-- include delete_messages

local function put_back(who, field, seen, unheard, refused)
  local h = P .. 'h:' .. who
  local held = call('HGET', h, field)
  if not held then return 0 end
  call('HDEL', h, field)
  local place, take = string.match(held, '^(%S+) (%S+)$')
  local queue, number, again = string.match(field, '^(%S+) (%d[^r]*)(r?)$')
  seen = seen and not (unheard[take] or unheard[take .. ':' .. number .. again])
  local data = call('HGET', P .. 'd:' .. queue, string.match(number, '^%d+'))
  if refused or not data then forget(queue, {number}) end
  if data then
    if not refused then
      call('ZADD', P .. 'q:' .. queue, place, number .. (seen and 'r' or again))
      ring(queue)
    end
    local id = not seen and label(data)
    if id then
      local name = who .. ':' .. take .. ':' .. number .. again
      local row = call('HMGET', P .. 'r:' .. id, 'k', 'h')
      if row[1] == name then unclaim(id, row[2], now()) end
    end
  end
  return 1
end
local function bury(who, unheard)
  for _, field in ipairs(call('HKEYS', P .. 'h:' .. who)) do
    put_back(who, field, true, unheard)
  end
  call('ZREM', C, who)
  call('DEL', P .. 'n:' .. who)
end
