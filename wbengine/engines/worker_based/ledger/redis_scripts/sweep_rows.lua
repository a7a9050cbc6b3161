-- Arguments: milliseconds, number of the first row to read, 1: only rows that are DONE
-- Result: number of removed rows, number of other rows that were read, whether there may be more
--
-- Deletes rows that are older than this. Rows whose holder has a heartbeat in this time stay.

-- include row

local time = now()
local before = time - ARGV[1]
local ids = call('ZRANGEBYSCORE', prefix .. 'rows', '-inf', before, 'LIMIT', ARGV[2], 500)
local removed, kept = 0, 0
for _, id in ipairs(ids) do
  local row = read_row(id)
  local heartbeat = row[3] and call('ZSCORE', prefix .. 'beats', row[3])
  if (heartbeat and tonumber(heartbeat) > before) or (ARGV[3] == '1' and row[2] ~= 'done') then
    kept = kept + 1
  else
    remove_row(id, row[3], row[5])
    removed = removed + 1
  end
end
return {removed, kept, #ids == 500 and 1 or 0}
