-- create_row(id, epoch, incarnation, milliseconds to keep the result or ''): create an OPEN row

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
