-- Arguments: milliseconds, number of the first row to read, 1: only rows that are DONE
-- Result: number of removed rows, number of other rows that were read, whether there may be more
--
-- Deletes rows that are older than this. Rows whose holder has a heartbeat in this time stay.

-- include row

local t = now()
local before = t - ARGV[1]
local ids = call('ZRANGEBYSCORE', P .. 'rows', '-inf', before, 'LIMIT', ARGV[2], 500)
local removed, kept = 0, 0
for _, id in ipairs(ids) do
  local there = row(id)
  local beat = there[3] and call('ZSCORE', P .. 'beats', there[3])
  if (beat and tonumber(beat) > before) or (ARGV[3] == '1' and there[2] ~= 'done') then
    kept = kept + 1
  else
    remove(id, there[3], there[5])
    removed = removed + 1
  end
end
return {removed, kept, #ids == 500 and 1 or 0}
