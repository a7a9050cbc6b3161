-- unclaim(id, holder, time): change a CLAIMED row back to OPEN

-- include ledger

local function unclaim(id, holder, t)
  call('HSET', P .. 'r:' .. id, 's', 'open', 'h', '', 'k', '', 'l', ledger()[2] or 0)
  call('SREM', P .. 'held:' .. holder, id)
  prolong(id)
  call('ZADD', P .. 'rows', t, id)
end
