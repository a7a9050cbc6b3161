-- create_row(id, epoch, incarnation, milliseconds to keep the result or ''): create an OPEN row
-- may_open(id, epoch) -> whether the row does not exist, or is OPEN with a lower epoch

-- include ledger
-- include fences

local function create_row(id, epoch, incarnation, result_ms)
  local row_key, lifetime = prefix .. 'r:' .. id, tonumber(result_ms) or math.huge
  call('HSET', row_key, 'e', epoch, 's', 'open', 'l', incarnation)
  if lifetime < ROW_MS then call('HSET', row_key, 't', result_ms) end
  if lifetime < math.huge then
    call('PEXPIRE', row_key, string.format('%.0f', math.max(lifetime, ROW_MS)))
  end
end
local function may_open(id, epoch)
  local row = call('HMGET', prefix .. 'r:' .. id, 'e', 's', 'l')
  return not row[1] or (
    row[2] == 'open' and tonumber(row[1]) < tonumber(epoch) and not is_forgotten(row[3])
  )
end
