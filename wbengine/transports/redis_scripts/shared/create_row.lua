-- make(id, epoch, incarnation, milliseconds to keep the result or ''): create an OPEN row

-- include ledger

local function make(id, epoch, life, kept)
  local r, ttl = P .. 'r:' .. id, tonumber(kept) or math.huge
  call('HSET', r, 'e', epoch, 's', 'open', 'l', life)
  if ttl < ROW_TTL then call('HSET', r, 't', kept) end
  if ttl < math.huge then
    call('PEXPIRE', r, string.format('%.0f', math.max(ttl, ROW_TTL)))
  end
end
