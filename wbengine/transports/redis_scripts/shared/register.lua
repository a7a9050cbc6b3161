-- register_user(digests, user, time, calls are rare) -> digest of the ledger, count of claims
--
-- The argument `digests` are those that the user knows, the latest first. If the server has none,
-- this stores the first one. Digests that the server does not know are of the time before a loss of
-- data, and are stored as such. A digest with '?' is new.

-- include ledger

local function register_user(digests, user, time, is_rare)
  local id, count = ledger_info()[1], ledger_info()[5]
  for new, digest in string.gmatch(digests, '(%??)(%S+)') do
    local is_known = digest == id or new ~= ''
    if not id then
      call('SET', prefix .. 'ledger', digest)
      id = digest
    end
    if not is_known then
      call('SADD', prefix .. 'former', digest)
      call('PEXPIRE', prefix .. 'former', LEDGER_MS)
    end
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
