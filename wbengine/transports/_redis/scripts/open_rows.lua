-- Result: digest, count of claims; nil: the session is over
--
-- Creates rows, which replace OPEN rows with lower epochs. Other rows that exist do not change, nor
-- do those of a run whose number is lower than that of the fence.

-- include fences
-- include users

if not is_session(user, session) then return false end
local opened_ids = {}
for _, fenced_row in ipairs(rows) do
  local id, epoch, fence = unpack(fenced_row)
  local is_opened = not is_refused(fence.id, fence.number)
    and open_row(id, epoch, ledger_info()[2] or 0, ttl)
  if is_opened then opened_ids[#opened_ids + 1] = id end
end
order_rows(opened_ids)
return register_user(digests, user)
