-- Arguments: user, number, (id, epoch, holder, name of a claim)...
--
-- Begins session `number`. Late commands of earlier sessions have no effect; rows of these claims,
-- which got no reply, become OPEN.

-- include row
-- include release_row
-- include session

call('PEXPIRE', P .. 'rows', LEDGER_TTL)
local number, last = session(ARGV[1])
if not number or tonumber(number) < tonumber(ARGV[2]) then
  begin_session(ARGV[1], ARGV[2], last or (ARGV[2] == '0' and '0' or '*'))
end
for i = 3, #ARGV, 4 do
  local there = call('HMGET', P .. 'r:' .. ARGV[i], 'e', 's', 'h', 'k')
  if there[1] == ARGV[i + 1] and there[2] == 'claimed' and there[4] == ARGV[i + 3] then
    unclaim(ARGV[i], ARGV[i + 2], now())
  end
end
