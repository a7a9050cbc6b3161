-- release_row(id, holder, time): change a CLAIMED row back to OPEN

-- include ledger

local function release_row(id, holder, time)
  call('HSET', prefix .. 'r:' .. id, 's', 'open', 'h', '', 'k', '', 'l', ledger_info()[2] or 0)
  call('SREM', prefix .. 'held:' .. holder, id)
  prolong_row(id)
  call('ZADD', prefix .. 'rows', time, id)
end
