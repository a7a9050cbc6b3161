-- Arguments: digest, user, holder
-- Result: digest, count of claims
--
-- Records a heartbeat of a holder, and keeps its rows from expiring.

-- include row
-- include register

call('PEXPIRE', P .. 'rows', LEDGER_TTL)
local t, held = now(), P .. 'held:' .. ARGV[3]
call('ZADD', P .. 'beats', t, ARGV[3])
-- What runs for days is still there when it ends.
local one = call('SRANDMEMBER', held)
local left = one and call('PTTL', P .. 'r:' .. one) or -1
if left >= 0 and left < ROW_TTL / 2 then
  for _, id in ipairs(call('SMEMBERS', held)) do prolong(id) end
end
return here(ARGV[1], ARGV[2], t, true)
