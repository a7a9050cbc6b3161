-- Begins a session. Late commands of earlier sessions have no effect; rows of these claims, which
-- got no reply, become OPEN.

-- include releasing
-- include users

first_write()
local number, last_row = read_session(user)
if not number or tonumber(number) < tonumber(session) then
  begin_session(user, session, last_row or (session == '0' and '0' or '*'))
end
for _, claim in ipairs(claims) do
  local row = call('HMGET', prefix .. 'r:' .. claim.id, 'e', 's', 'k')
  if row[1] == claim.epoch and row[2] == 'claimed' and row[3] == claim.name then
    release_row(claim.id, claim.holder)
  end
end
