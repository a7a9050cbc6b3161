-- ledger_info() -> its id, the incarnation of its server, the first incarnation with reliable rows,
--   time until which claims are refused, count of claims
-- begin_incarnation() -> its number. It is higher than all others, also than those that a loss of data
--   has removed, because it is at least the present time
-- declare_loss(number of an incarnation): rows of earlier ones are not reliable
-- is_forgotten(incarnation in which a row was opened) -> whether the server lost data since
-- refuses_claims() -> whether claims are refused, because the server has just restarted

-- include server

local info
local function ledger_info()
  if not info then
    info = call('HMGET', prefix .. 'server', 'ledger', 'life', 'from', 'hold', 'count')
  end
  return info
end
local function begin_incarnation()
  local incarnation = math.max(tonumber(ledger_info()[2] or 0) + 1, now())
  info[2] = string.format('%.0f', incarnation)
  call('HSET', prefix .. 'server', 'life', info[2])
  return incarnation
end
local function declare_loss(incarnation)
  ledger_info()[3] = string.format('%.0f', incarnation)
  call('PEXPIRE', prefix .. 'server', LEDGER_MS)  -- It needs no memory, like `first_write`.
  call('HSET', prefix .. 'server', 'from', info[3])
end
local function is_forgotten(incarnation)
  return tonumber(incarnation) < tonumber(ledger_info()[3] or 0)
end
local function refuses_claims()
  local refused_until = tonumber(ledger_info()[4])
  if not refused_until then return false end
  local remaining = refused_until - now()
  return remaining > 0 and remaining <= CLAIM_REFUSAL_MS
end
