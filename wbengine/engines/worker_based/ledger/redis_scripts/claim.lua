-- Arguments: user, its session, id, epoch, holder, name of this claim
-- Result: verdict, epoch, holder, result, count of claims; nil: the session is over
--
-- Grants an OPEN row of this epoch to exactly one holder. A repeated claim of the same name gets
-- the same result.

-- include row
-- include claim_row
-- include session

if not is_session(ARGV[1], ARGV[2]) then return false end
local time = now()
if refuses_claims(time) then
  return redis.error_reply('WAIT it has just started, and finds out whether it was set back')
end
first_write()
local reply = claim_row(ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if reply[1] == 'GRANTED' then
  call('ZADD', prefix .. 'beats', time, ARGV[5])
  reply[5] = call('HINCRBY', prefix .. 'server', 'count', 1)
end
return reply
