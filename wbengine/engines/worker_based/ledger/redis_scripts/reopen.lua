-- Arguments: id, epoch
-- Result: nil: no row; the result if it is done; else 1, and a row at a lower epoch is OPEN again
--
-- Takes a row from its holder, whose later steps with the old epoch have no effect. A row that is
-- done or has this epoch does not change.

-- include row

local id, there = ARGV[1], row(ARGV[1])
if not there[1] then return false end
if there[2] == 'done' then return {whole(there[4], there[5])} end
if tonumber(there[1]) < tonumber(ARGV[2]) then
  call('PEXPIRE', P .. 'rows', LEDGER_TTL)
  call('HSET', P .. 'r:' .. id, 'e', ARGV[2], 's', 'open', 'h', '', 'k', '', 'l', ledger()[2] or 0)
  prolong(id)
  if there[3] then call('SREM', P .. 'held:' .. there[3], id) end
  call('ZADD', P .. 'rows', now(), id)
end
return 1
