-- Result: number of removed rows, number of other rows that were read, whether there may be more
--
-- Deletes rows that are older than `age`. Rows whose holder has a heartbeat in this time stay.
-- Holders that have no rows and no heartbeat in this time are deleted after the last rows, and users
-- that were killed and have not reported for LEDGER_MS.

-- include rows

local before = now() - age
local ids = call('ZRANGEBYSCORE', prefix .. 'rows', '-inf', before, 'LIMIT', first, 500)
local removed_ids = {}
for _, id in ipairs(ids) do
  local row = read_head(id)
  local heartbeat = row and row.holder ~= '' and call('ZSCORE', prefix .. 'beats', row.holder)
  local is_kept = heartbeat and tonumber(heartbeat) > before
    or only_done and not (row and row.state == 'done')
  if not is_kept then removed_ids[#removed_ids + 1] = id end
end
remove_rows(removed_ids)
local has_more = #ids == 500
if not has_more then
  for _, holder in ipairs(call('ZRANGEBYSCORE', prefix .. 'beats', '-inf', before)) do
    local held_rows_key = prefix .. 'held:' .. holder
    for _, id in ipairs(call('SMEMBERS', held_rows_key)) do  -- Rows may have expired.
      if call('EXISTS', row_key(id)) == 0 then call('SREM', held_rows_key, id) end
    end
    if call('EXISTS', held_rows_key) == 0 then call('ZREM', prefix .. 'beats', holder) end
  end
  local users = call('HGETALL', prefix .. 'users')
  for i = 1, #users, 2 do
    local reported = tonumber(string.match(users[i + 1], '^%d+'))
    if reported < now() - LEDGER_MS then call('HDEL', prefix .. 'users', users[i]) end
  end
end
return {#removed_ids, #ids - #removed_ids, has_more and 1 or 0}
