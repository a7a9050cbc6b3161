-- Result: for each 1 if it was held
--
-- Stores results of rows that the holder has claimed. Other rows do not change. Nothing changes if
-- the number of the fence is higher.

-- include finishing
-- include fences

first_write()
local flags, refused = {}, is_refused(fence.id, fence.number)
for i, finished in ipairs(rows) do
  local id, epoch, result = unpack(finished)
  local row = read_row(id)
  local is_held = is_held_by(holder, row, epoch) and not refused
  if is_held then finish_row(id, row, result, '', ttl) end
  flags[i] = is_held and 1 or 0
end
write_finished(holder)
return flags
