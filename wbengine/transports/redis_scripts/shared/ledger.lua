-- ledger_info() -> its id, the incarnation of its server, the first incarnation with reliable rows,
--   time until which claims are refused, count of claims
-- is_forgotten(incarnation in which a row was opened) -> whether the server lost data since
-- full_result(result, ID of the rest if out of line) -> the result; '' if it is lost
-- order_rows(ids): store that these rows are opened or finished now

-- include server

local info
local function ledger_info()
  if not info then
    info = call('HMGET', prefix .. 'server', 'ledger', 'life', 'from', 'hold', 'count')
  end
  return info
end
local function is_forgotten(incarnation)
  return tonumber(incarnation or 0) < tonumber(ledger_info()[3] or 0)
end
local function full_result(result, body)
  if not body then return result or '' end
  body = call('GET', prefix .. 'b:' .. body)
  return body and result .. body or ''
end
local function order_rows(ids)
  if #ids == 0 then return end
  local members = {}
  for i, id in ipairs(ids) do members[2 * i - 1], members[2 * i] = now(), id end
  call('ZADD', prefix .. 'rows', unpack(members))
end
