-- Arguments: version of the routing, bodies, holder for claims, milliseconds to keep results,
--   number of arguments of a take, these arguments, (id, epoch, consumer of the request, its queue
--   and number, priority, reply, number of its queues, queue...)...
-- Result: number of queues for each reply, or -1 if another process owns the row; and the result of
--   the take; or the results of `publish` without a change
--
-- Stores results in rows, publishes replies, acknowledges requests, and takes other requests. If
-- the row has another epoch or holder, it does not change, and the reply is not published. A reply
-- without a row is published: if its engine deleted the row, it ignores the reply; if the row was
-- lost, the engine may wait for the reply.

-- include publishing
-- include settling
-- include take_messages
-- include keep_body

local refusal = check_batch()
if refusal ~= nil then return refusal end
first_write()
local time, holder, take_stop, counts = now(), ARGV[3], 5 + ARGV[5], {}
local i = take_stop + 1
local finished_ids, row_times, deleted_ids, settled = {}, {}, {}, {}
while i <= #ARGV do
  local id, stop, count, body = ARGV[i], i + 7 + ARGV[i + 7], 0, body_mark(#counts + 1)
  local row_key = prefix .. 'r:' .. id
  local row = call('HMGET', row_key, 'e', 's', 'h', 'l', 't')
  local is_same_epoch = row[1] == ARGV[i + 1]
  if is_same_epoch and (
    (row[2] == 'claimed' and row[3] == holder)
    or (row[2] == 'open' and is_forgotten(row[4]))
  ) then
    call('HSET', row_key, 's', 'done', 'd', ARGV[i + 6], 'h', '', 'k', '')
    finished_ids[#finished_ids + 1] = id
    row_times[#row_times + 1] = time
    row_times[#row_times + 1] = id
    if expire_done_row(id, row[5], ARGV[4]) then
      deleted_ids[#deleted_ids + 1] = id
    elseif body ~= '' then
      body = keep_body(id, bodies[#counts + 1])
    end
  elseif row[1] and not (is_same_epoch and row[2] == 'done') then
    count = -1
  end
  for k = i + 8, stop do
    if count >= 0 then count = count + add_message(ARGV[k], ARGV[i + 5], ARGV[i + 6], body) end
  end
  local key = ARGV[i + 2] .. ' ' .. ARGV[i + 3]
  settled[key] = settled[key] or {consumer = ARGV[i + 2], queue = ARGV[i + 3], numbers = {}}
  table.insert(settled[key].numbers, ARGV[i + 4])
  counts[#counts + 1] = count
  i = stop + 1
end
if #finished_ids > 0 then
  call('SREM', prefix .. 'held:' .. holder, unpack(finished_ids))
  call('ZADD', prefix .. 'rows', unpack(row_times))
end
if #deleted_ids > 0 then call('ZREM', prefix .. 'rows', unpack(deleted_ids)) end
for _, from in pairs(settled) do settle_messages(from.consumer, from.queue, from.numbers) end
write_messages()
counts[#counts + 1] = take_stop > 5 and take_messages(6, take_stop, time)
return counts
