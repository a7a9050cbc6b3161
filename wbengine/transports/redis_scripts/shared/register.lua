-- here(digest, user, time, whether calls are rare) -> digest of the ledger, count of claims
--
-- If the server has no digest, this stores the argument `digest`.

-- include ledger

local function here(digest, user, t, seldom)
  local id, count = ledger()[1], ledger()[5]
  if not id then
    call('SET', P .. 'ledger', digest)
    id = digest
  end
  -- What is said for each request is noted now and then.
  if seldom or t % 50 == 0 or not call('ZSCORE', P .. 'users', user) then
    call('ZADD', P .. 'users', t, user)
    for _, key in ipairs({'ledger', 'server', 'users', 'beats', 'rows', 'session:' .. user}) do
      call('PEXPIRE', P .. key, LEDGER_TTL)
    end
  end
  return {id, count or 0}
end
