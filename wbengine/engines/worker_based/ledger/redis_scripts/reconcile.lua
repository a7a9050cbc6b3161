-- Arguments: user, number, (id, epoch, holder, name of a claim)...
--
-- Begins session `number`. Late commands of earlier sessions have no effect; rows of these claims,
-- which got no reply, become OPEN.

-- include row
-- include release_row
-- include session

first_write()
local number, last_row = read_session(ARGV[1])
if not number or tonumber(number) < tonumber(ARGV[2]) then
  begin_session(ARGV[1], ARGV[2], last_row or (ARGV[2] == '0' and '0' or '*'))
end
for i = 3, #ARGV, 4 do
  local row = call('HMGET', prefix .. 'r:' .. ARGV[i], 'e', 's', 'h', 'k')
  if row[1] == ARGV[i + 1] and row[2] == 'claimed' and row[4] == ARGV[i + 3] then
    release_row(ARGV[i], ARGV[i + 2], now())
  end
end
