-- Result: incarnation of the server
--
-- Begins a session. Late commands of earlier sessions have no effect; rows of these claims, which
-- got no reply, become OPEN.

-- include rows
-- include users

first_write()
local number, last_row = read_session(user)
if session ~= '0' then check_loss() end
if not number or tonumber(number) < tonumber(session) then
  begin_session(user, session, last_row or (session == '0' and '0' or '*'))
  call('PEXPIRE', prefix .. 'users', LEDGER_MS)
end
for _, claim in ipairs(claims) do
  local row = read_row(claim.id)
  if row and row.epoch == claim.epoch and row.state == 'claimed' and row.claim == claim.name then
    reopen_row(claim.id, row)
  end
end
return tonumber(ledger_info()[2] or 0)
