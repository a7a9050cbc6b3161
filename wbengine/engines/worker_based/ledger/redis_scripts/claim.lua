-- Arguments: user, its session, id, epoch, holder, name of this claim
-- Result: verdict, epoch, holder, result, count of claims; nil: the session is over
--
-- Grants an OPEN row of this epoch to exactly one holder. A repeated claim of the same name gets
-- the same result.

-- include row
-- include claim_row
-- include in_session

local t = now()
if is_held(t) then
  return redis.error_reply('WAIT it has just started, and finds out whether it was set back')
end
call('PEXPIRE', P .. 'rows', LEDGER_TTL)
local said = claim(ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if said[1] == 'GRANTED' then
  call('ZADD', P .. 'beats', t, ARGV[5])
  said[5] = call('HINCRBY', P .. 'server', 'count', 1)
end
return said
