-- prolong_row(id): set the expiry of a row back to the default, if it has one
-- release_row(id, holder): change a CLAIMED row back to OPEN

-- include ledger

local function prolong_row(id)
  if call('PTTL', prefix .. 'r:' .. id) >= 0 then call('PEXPIRE', prefix .. 'r:' .. id, ROW_MS) end
end
local function release_row(id, holder)
  call('HSET', prefix .. 'r:' .. id, 's', 'open', 'h', '', 'k', '', 'l', ledger_info()[2] or 0)
  call('SREM', prefix .. 'held:' .. holder, id)
  prolong_row(id)
  order_rows({id})
end
