-- read_session(user) -> number of the session, and of the last row; nil if there is none
-- is_session(user, number) -> whether this is the number of its session
-- begin_session(user, number, last row): store this session
-- check_loss(): if there is no ledger, although a user knows it, its rows are lost
-- register_user(digests, user, calls are rare) -> digest of the ledger, count of claims, last
--   incarnation that began with lost data
--
-- Steps of another session have no effect. A session includes a report of the user.
--
-- The argument `digests` are those that the user knows, the latest first. If the server has none,
-- this stores the first one. Digests that the server does not know are of the time before a loss of
-- data, and are stored as such. A digest with '?' is new.

-- include ledger

local function read_session(user)
  return string.match(call('HGET', prefix .. 'users', user) or '', '^%d+ (%d+) (%S+)$')
end
local function is_session(user, number) return (read_session(user)) == number end
local function begin_session(user, number, last_row)
  call('HSET', prefix .. 'users', user, now() .. ' ' .. number .. ' ' .. last_row)
end
local function check_loss()
  local id, _, from = unpack(ledger_info())
  if not (id or from) then declare_loss(begin_incarnation()) end
end
local function report_user(user)
  local number, last_row = read_session(user)
  local session = number and ' ' .. number .. ' ' .. last_row or ''
  call('HSET', prefix .. 'users', user, now() .. session)
  for _, key in ipairs({'server', 'users', 'beats', 'rows'}) do
    call('PEXPIRE', prefix .. key, LEDGER_MS)
  end
end
local function register_user(digests, user, is_rare)
  local id = ledger_info()[1]
  for new, digest in string.gmatch(digests, '(%??)(%S+)') do
    local is_known = digest == id or new ~= ''
    if not id then
      if new == '' then check_loss() end
      call('HSET', prefix .. 'server', 'ledger', digest)
      id = digest
    end
    if not is_known then
      call('SADD', prefix .. 'former', digest)
      call('PEXPIRE', prefix .. 'former', LEDGER_MS)
    end
  end
  -- If each request calls this, few calls report.
  if is_rare or now() % 50 == 0 then report_user(user) end
  return {id, tonumber(ledger_info()[5] or 0), tonumber(ledger_info()[3] or 0)}
end
