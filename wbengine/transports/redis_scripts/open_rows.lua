-- Result: digest, count of claims; nil: the session is over
--
-- Creates rows that do not exist. Rows that exist stay, unless OPEN ones with lower epochs are
-- replaced. Rows of a run whose number is lower than that of the fence do not change.

-- include rows
-- include opening
-- include users

if not is_session(user, session) then return false end
local opened_ids = {}
for _, fenced_row in ipairs(rows) do
  local id, epoch, fence = unpack(fenced_row)
  local row = read_row(id)
  local is_replaced = replace and row[2] == 'open' and tonumber(row[1]) < tonumber(epoch)
  if (not row[1] or is_replaced) and not is_refused(fence.id, fence.number) then
    create_row(id, epoch, ledger_info()[2] or 0, ttl)
    opened_ids[#opened_ids + 1] = id
  end
end
order_rows(opened_ids)
return register_user(digests, user)
