-- Arguments: holder, milliseconds to keep results, (id, epoch, result)...
-- Result: for each 1 if it was held
--
-- Stores results of rows that the holder has claimed. Other rows do not change.

-- include row

local t, holder, done, his, ended, seen = now(), ARGV[1], {}, {}, {}, {}
for i = 3, #ARGV, 3 do
  local id, there = ARGV[i], row(ARGV[i])
  local held = is_held_by(holder, there, ARGV[i + 1]) and not seen[id]
  done[#done + 1] = held and 1 or 0
  if held then
    seen[id] = there
    his[#his + 1] = id
    ended[#ended + 1] = t
    ended[#ended + 1] = id
  end
end
if #his == 0 then return done end
call('SREM', P .. 'held:' .. holder, unpack(his))
local gone = {}
for i = 3, #ARGV, 3 do
  if done[i / 3] == 1 then
    local id = ARGV[i]
    call('HSET', P .. 'r:' .. id, 's', 'done', 'd', ARGV[i + 2], 'h', '', 'k', '')
    if is_gone_when_done(id, seen[id][6], ARGV[2]) then gone[#gone + 1] = id end
  end
end
call('ZADD', P .. 'rows', unpack(ended))
if #gone > 0 then call('ZREM', P .. 'rows', unpack(gone)) end
return done
