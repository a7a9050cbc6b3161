-- Result: for each 1 if it was removed; count of claims, if any was removed
--
-- Deletes rows that are OPEN, so that their requests do not run. Rows that are claimed, done or of
-- a later epoch do not change, nor rows of a run whose number is lower than that of the fence.

-- include fences

local flags, revoked_ids = {}, {}
for i, fenced_row in ipairs(rows) do
  local id, epoch, fence = unpack(fenced_row)
  local row = read_head(id)
  local is_open = row and row.state == 'open'
  local is_later = is_open and epoch ~= '' and tonumber(row.epoch) > tonumber(epoch)
  local is_revoked = is_open and not is_later and not is_refused(fence.id, fence.number)
  if is_revoked then revoked_ids[#revoked_ids + 1] = id end
  flags[i] = is_revoked and 1 or 0
end
remove_rows(revoked_ids)
return {flags, #revoked_ids > 0 and call('HINCRBY', prefix .. 'server', 'count', #revoked_ids)}
