-- Result: nil: no row; the result if it is done; else 1, and a row at a lower epoch is OPEN again
--
-- Takes a row from its holder, whose later steps with the old epoch have no effect. A row that is
-- done or has this epoch does not change, nor a row of a run whose number is lower than that of the
-- fence.

-- include rows
-- include fences
-- include releasing

local row = read_row(id)
if not row[1] then return false end
if row[2] == 'done' then return {full_result(row[4], row[5])} end
if tonumber(row[1]) < tonumber(epoch) and not is_refused(fence.id, fence.number) then
  first_write()
  local incarnation = ledger_info()[2] or 0
  call('HSET', prefix .. 'r:' .. id, 'e', epoch, 's', 'open', 'h', '', 'k', '', 'l', incarnation)
  prolong_row(id)
  if row[3] then call('SREM', prefix .. 'held:' .. row[3], id) end
  order_rows({id})
end
return 1
