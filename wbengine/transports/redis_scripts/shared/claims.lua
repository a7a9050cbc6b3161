-- read_label(data) -> id, epoch and ledger digest of the row of a message; nothing if it has no row
-- claim_row(id, epoch, holder, name of the claim) -> verdict, epoch, holder, result
-- refuses_claims() -> whether claims are refused, because the server has just restarted
--
-- A script that claims must also add the rows to `held:HOLDER` and write a heartbeat of the holder
-- to `beats`. A client without a reply repeats the claim under the same name and gets the same
-- result.

-- include ledger

local function read_label(data)
  if string.byte(data) ~= 33 then return end
  -- A client that knows the digest can write any label.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
local function claim_row(id, epoch, holder, name)
  local row_key = prefix .. 'r:' .. id
  local row = call('HMGET', row_key, 'e', 's', 'h', 'd', 'k', 'l', 'b')
  if not row[1] then return {'MISSING', epoch, '', ''} end
  if row[1] ~= epoch then
    local verdict = tonumber(epoch) < tonumber(row[1]) and 'STALE' or 'MISSING'
    return {verdict, row[1], '', ''}
  end
  if row[2] == 'done' then return {'DONE', epoch, '', full_result(row[4], row[7])} end
  if row[2] == 'claimed' then
    return {row[5] == name and 'GRANTED' or 'HELD', epoch, row[3], ''}
  end
  if is_forgotten(row[6]) then return {'HELD', epoch, FORGOTTEN, ''} end
  call('HSET', row_key, 's', 'claimed', 'h', holder, 'k', name)
  return {'GRANTED', epoch, holder, ''}
end
local function refuses_claims()
  local refused_until = tonumber(ledger_info()[4])
  if not refused_until then return false end
  local remaining = refused_until - now()
  return remaining > 0 and remaining <= CLAIM_REFUSAL_MS
end
