-- read_label(data) -> id, epoch and ledger digest of the row of a message; nothing if it has no row
-- claim_row(id, epoch, holder, name of the claim) -> verdict, epoch, holder, result
--
-- A script that claims must also add the rows to `held:HOLDER` and write a heartbeat of the holder
-- to `beats`. A client without a reply repeats the claim under the same name and gets the same
-- result.

-- include rows

local function read_label(data)
  if string.byte(data) ~= 33 then return end
  -- A client that knows the digest can write any label.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
local function claim_row(id, epoch, holder, name)
  local row = read_row(id)
  if not row then return {'MISSING', epoch, '', ''} end
  if row.epoch ~= epoch then
    local verdict = tonumber(epoch) < tonumber(row.epoch) and 'STALE' or 'MISSING'
    return {verdict, row.epoch, '', ''}
  end
  if row.state == 'done' then return {'DONE', epoch, '', full_result(row)} end
  if row.state == 'claimed' then
    return {row.claim == name and 'GRANTED' or 'HELD', epoch, row.holder, ''}
  end
  row.state, row.holder, row.claim = 'claimed', holder, name
  write_row(id, row)
  return {'GRANTED', epoch, holder, ''}
end
