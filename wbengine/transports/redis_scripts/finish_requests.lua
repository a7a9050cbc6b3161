-- Arguments: version of the routing, bodies, holder for claims, milliseconds to keep results,
--   number of arguments of a take, these arguments, (id, epoch, consumer of the request, its queue
--   and number, priority, reply, number of its queues, queue...)...
-- Result: number of queues for each reply, or -1 if another process owns the row; and the result of
--   the take; or the results of `publish` without a change
--
-- Stores results in rows, publishes replies, acknowledges requests, and takes other requests. A
--   reply whose row has another epoch or holder is not published, and the row does not change. A
--   reply without a
-- row is published: if its engine deleted the row, it ignores the reply; if the row was lost, the
--   engine may wait for the reply.

-- include publishing
-- include settling
-- include label
-- include taking
-- include keep_body
-- include first_write

local t, holder, last, counts = now(), ARGV[3], 5 + ARGV[5], {}
local i = last + 1
local ended, rows, gone, taken = {}, {}, {}, {}
while i <= #ARGV do
  local id, final, count, body = ARGV[i], i + 7 + ARGV[i + 7], 0, apart(#counts + 1)
  local r = P .. 'r:' .. id
  local there = call('HMGET', r, 'e', 's', 'h', 'l', 't')
  local same = there[1] == ARGV[i + 1]
  if same and (
    (there[2] == 'claimed' and there[3] == holder)
    or (there[2] == 'open' and is_forgotten(there[4]))
  ) then
    call('HSET', r, 's', 'done', 'd', ARGV[i + 6], 'h', '', 'k', '')
    ended[#ended + 1] = id
    rows[#rows + 1] = t
    rows[#rows + 1] = id
    if is_gone_when_done(id, there[5], ARGV[4]) then
      gone[#gone + 1] = id
    elseif body ~= '' then
      body = keep(id, bodies[#counts + 1])
    end
  elseif there[1] and not (same and there[2] == 'done') then
    count = -1
  end
  for k = i + 8, final do
    if count >= 0 then count = count + place(ARGV[k], ARGV[i + 5], ARGV[i + 6], body) end
  end
  local by = ARGV[i + 2] .. ' ' .. ARGV[i + 3]
  taken[by] = taken[by] or {who = ARGV[i + 2], queue = ARGV[i + 3], numbers = {}}
  table.insert(taken[by].numbers, ARGV[i + 4])
  counts[#counts + 1] = count
  i = final + 1
end
if #ended > 0 then
  call('SREM', P .. 'held:' .. holder, unpack(ended))
  call('ZADD', P .. 'rows', unpack(rows))
end
if #gone > 0 then call('ZREM', P .. 'rows', unpack(gone)) end
for _, from in pairs(taken) do settle(from.who, from.queue, from.numbers) end
put()
counts[#counts + 1] = last > 5 and take(6, last, t)
return counts
