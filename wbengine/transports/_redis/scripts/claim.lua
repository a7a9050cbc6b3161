-- Result: verdict, epoch, holder, result, count of claims; nil: the session is over
--
-- Grants an OPEN row of this epoch to exactly one holder. A repeated claim of the same name gets
-- the same result.

-- include claims
-- include users

if not is_session(user, session) then return false end
if refuses_claims() then
  return redis.error_reply('WAIT it has just started, and finds out whether it was set back')
end
first_write()
local reply = claim_row(attempt.id, attempt.epoch, attempt.holder, attempt.name)
if reply[1] == 'GRANTED' then
  call('SADD', prefix .. 'held:' .. attempt.holder, attempt.id)
  call('ZADD', prefix .. 'beats', now(), attempt.holder)
  reply[5] = call('HINCRBY', prefix .. 'server', 'count', 1)
end
return reply
