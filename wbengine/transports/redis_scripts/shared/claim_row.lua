-- claim_row(id, epoch, holder, name of the claim) -> verdict, epoch, holder, result
--
-- The script must also write a heartbeat of the holder to `beats`. A client without a reply repeats
-- the claim under the same name and gets the same result.

-- include ledger

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
  call('SADD', prefix .. 'held:' .. holder, id)
  return {'GRANTED', epoch, holder, ''}
end
