-- Result: number of queues for each request, and the result of register_user(); or only nil, if the
--   incarnation or the session differs; or the results of `publish` without a change
--
-- Creates rows, which replace OPEN rows with lower epochs, and publishes their requests, if there
-- are messages. Other rows that exist do not change. An attempt without a reply is repeated only if
-- the server can determine that it was not executed. Nothing is done for a run whose number is
-- lower than that of the fence.

-- include publishing
-- include fences
-- include users

local refusal = check_batch(batch)
if refusal ~= nil then return refusal end
local number, last_row = read_session(user)
if number ~= session or incarnation ~= tostring(ledger_info()[2] or 0) then return {false} end
local counts, opened_ids, newest_row = {}, {}, tonumber(last_row) or 0
for i, row in ipairs(rows) do
  local row_number = tonumber(row.number)
  local is_new = row.tried_incarnation == ''
    or (last_row ~= '*' and row_number > tonumber(last_row))
  if not is_new or is_refused(row.fence, row.run) then
    counts[i] = 1
  else
    local opened_in = row.tried_incarnation == '' and incarnation or row.tried_incarnation
    if open_row(row.id, row.epoch, opened_in, ttl) then opened_ids[#opened_ids + 1] = row.id end
    counts[i] = batch.messages[i] and add_message(batch.messages[i]) or 0
  end
  if is_new then newest_row = math.max(newest_row, row_number) end
end
order_rows(opened_ids)
write_messages()
-- Only requests are repeated by their numbers. Other threads open other rows at any time.
if #batch.messages > 0 then begin_session(user, number, string.format('%.0f', newest_row)) end
counts[#counts + 1] = register_user(digests, user)
return counts
