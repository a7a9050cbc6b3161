-- Arguments: holder, milliseconds to keep results, id of the fence or '', number of the run,
--   (id, epoch, result)...
-- Result: for each 1 if it was held
--
-- Stores results of rows that the holder has claimed. Other rows do not change. Nothing changes if
-- the number of the fence is higher.

-- include row

local time, holder, flags, held_ids, row_times, rows = now(), ARGV[1], {}, {}, {}, {}
local refused = is_refused(ARGV[3], ARGV[4])
for i = 5, #ARGV, 3 do
  local id, row = ARGV[i], read_row(ARGV[i])
  local held = is_held_by(holder, row, ARGV[i + 1]) and not rows[id] and not refused
  flags[#flags + 1] = held and 1 or 0
  if held then
    rows[id] = row
    held_ids[#held_ids + 1] = id
    row_times[#row_times + 1] = time
    row_times[#row_times + 1] = id
  end
end
if #held_ids == 0 then return flags end
call('SREM', prefix .. 'held:' .. holder, unpack(held_ids))
local deleted_ids = {}
for i = 5, #ARGV, 3 do
  if flags[(i - 2) / 3] == 1 then
    local id = ARGV[i]
    call('HSET', prefix .. 'r:' .. id, 's', 'done', 'd', ARGV[i + 2], 'h', '', 'k', '')
    if expire_done_row(id, rows[id][6], ARGV[2]) then deleted_ids[#deleted_ids + 1] = id end
  end
end
call('ZADD', prefix .. 'rows', unpack(row_times))
if #deleted_ids > 0 then call('ZREM', prefix .. 'rows', unpack(deleted_ids)) end
return flags
