-- Arguments: (id, epoch or '')...
-- Result: for each 1 if it was removed; count of claims, if any was removed
--
-- Deletes rows that are OPEN, so that their requests do not run. Rows that are claimed, done or of
-- a later epoch do not change.

-- include row

local done, revoked = {}, 0
for i = 1, #ARGV, 2 do
  local there, epoch = row(ARGV[i]), ARGV[i + 1]
  local theirs = epoch ~= '' and there[1] and tonumber(there[1]) > tonumber(epoch)
  local mine = there[2] == 'open' and not theirs
  if mine then
    remove(ARGV[i], false)
    revoked = revoked + 1
  end
  done[#done + 1] = mine and 1 or 0
end
return {done, revoked > 0 and call('HINCRBY', P .. 'server', 'count', revoked)}
