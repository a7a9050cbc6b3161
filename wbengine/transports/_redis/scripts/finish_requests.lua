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
-- include finishing

local refusal = check_batch(batch)
if refusal ~= nil then return refusal end
settle_messages(requests)
local counts = {}
for i, request in ipairs(requests) do
  local id, message = request.id, batch.messages[i]
  local row, mark = read_row(id), nil
  local is_done = row and row.epoch == request.epoch and row.state == 'done'
  if is_held_by(holder, row, request.epoch) then
    mark = finish_row(id, row, message.data, message.body, ttl)
    row = nil
  end
  counts[i] = row and not is_done and -1 or add_message(message, mark)
end
write_finished(holder)
write_messages()
counts[#counts + 1] = order and take_messages(order) or false
return counts
