-- register_user(digest, user, time, calls are rare) -> digest of the ledger, count of claims
--
-- If the server has no digest, this stores the argument `digest`.

-- include ledger

local function register_user(digest, user, time, is_rare)
  local id, count = ledger_info()[1], ledger_info()[5]
  if not id then
    call('SET', prefix .. 'ledger', digest)
    id = digest
  end
  -- If each request calls this, few calls record the user.
  if is_rare or time % 50 == 0 or not call('ZSCORE', prefix .. 'users', user) then
    call('ZADD', prefix .. 'users', time, user)
    for _, key in ipairs({'ledger', 'server', 'users', 'beats', 'rows', 'session:' .. user}) do
      call('PEXPIRE', prefix .. key, LEDGER_MS)
    end
  end
  return {id, count or 0}
end
