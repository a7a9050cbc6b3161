-- ledger_info() -> its id, the incarnation of its server, the first incarnation with reliable rows,
--   time until which claims are refused, count of claims
-- is_forgotten(incarnation in which a row was opened) -> whether the server lost data since
-- expire_done_row(id, milliseconds to keep the result for its engine, and for its worker)
--   -> whether the row has been deleted; otherwise it may have got an expiry
-- full_result(result, ID of the rest if out of line) -> the result; '' if it is lost
-- prolong_row(id): set the expiry of a row back to the default, if it has one
-- is_refused(id of a fence or '', number of a run) -> whether the number of the fence is higher
-- refuses_claims(time) -> whether claims are refused, because the server has just restarted

-- include server

local info
local function ledger_info()
  if not info then
    info = call('HMGET', prefix .. 'server', 'life', 'from', 'hold', 'count')
    table.insert(info, 1, call('GET', prefix .. 'ledger'))
  end
  return info
end
local function is_forgotten(incarnation)
  return tonumber(incarnation or 0) < tonumber(ledger_info()[3] or 0)
end
local function expire_done_row(id, engine_ms, worker_ms)
  local lifetime = math.min(tonumber(engine_ms or ROW_MS), tonumber(worker_ms) or math.huge)
  if lifetime < ROW_MS then
    call('PEXPIRE', prefix .. 'r:' .. id, string.format('%.0f', lifetime))
  end
  return lifetime == 0
end
local function full_result(result, body)
  if not body then return result or '' end
  body = call('GET', prefix .. 'b:' .. body)
  return body and result .. body or ''
end
local function prolong_row(id)
  if call('PTTL', prefix .. 'r:' .. id) >= 0 then call('PEXPIRE', prefix .. 'r:' .. id, ROW_MS) end
end
local function is_refused(fence, number)
  local raised = fence ~= '' and call('HGET', prefix .. 'r:' .. fence, 'e')
  return raised and tonumber(raised) > tonumber(number)
end
local function refuses_claims(time)
  local remaining = tonumber(ledger_info()[4] or 0) - time
  return remaining > 0 and remaining <= CLAIM_REFUSAL_MS
end
