-- Result: nil: no row; the result if it is done; else 1, and a row at a lower epoch is OPEN again
--
-- Takes a row from its holder, whose later steps with the old epoch have no effect. A row that is
-- done or has this epoch does not change, nor a row of a run whose number is lower than that of the
-- fence.

-- include fences

local row = read_row(id)
if not row then return false end
if row.state == 'done' then return {full_result(row)} end
if tonumber(row.epoch) < tonumber(epoch) and not is_refused(fence.id, fence.number) then
  first_write()
  row.epoch = epoch
  reopen_row(id, row)
end
return 1
