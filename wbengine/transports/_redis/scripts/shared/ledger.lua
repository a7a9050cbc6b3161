-- ledger_info() -> its id, the incarnation of its server, the first incarnation with reliable rows,
--   time until which claims are refused, count of claims
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
local function is_forgotten(incarnation)
  return tonumber(incarnation) < tonumber(ledger_info()[3] or 0)
end
local function refuses_claims()
  local refused_until = tonumber(ledger_info()[4])
  if not refused_until then return false end
  local remaining = refused_until - now()
  return remaining > 0 and remaining <= CLAIM_REFUSAL_MS
end
