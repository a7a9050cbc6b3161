-- ledger() -> its id, the incarnation of its server, the first incarnation with reliable rows, time
--   until which claims are refused, count of claims
-- is_forgotten(incarnation in which a row was opened) -> whether the server lost data since
--   is_gone_when_done(id, milliseconds to keep the result for its engine, and for its worker) ->
--   whether the row of a finished request has been deleted; otherwise it may have got an expiry
-- whole(result, ID of the rest if out of line) -> the result; '' if it is lost
-- prolong(id): set the expiry of a row back to the default, if it has one
-- is_held(time) -> whether claims are refused, because the server has just restarted

-- include server

local known
local function ledger()
  if not known then
    known = call('HMGET', P .. 'server', 'life', 'from', 'hold', 'count')
    table.insert(known, 1, call('GET', P .. 'ledger'))
  end
  return known
end
local function is_forgotten(life)
  return tonumber(life or 0) < tonumber(ledger()[3] or 0)
end
local function is_gone_when_done(id, engines, workers)
  local ttl = math.min(tonumber(engines or ROW_TTL), tonumber(workers) or math.huge)
  if ttl < ROW_TTL then call('PEXPIRE', P .. 'r:' .. id, string.format('%.0f', ttl)) end
  return ttl == 0
end
local function whole(result, body)
  if not body then return result or '' end
  body = call('GET', P .. 'b:' .. body)
  return body and result .. body or ''
end
local function prolong(id)
  if call('PTTL', P .. 'r:' .. id) >= 0 then call('PEXPIRE', P .. 'r:' .. id, ROW_TTL) end
end
local function is_held(t)
  local left = tonumber(ledger()[4] or 0) - t
  return left > 0 and left <= HOLD
end
