-- Arguments: (id, epoch or '', id of the fence or '', number of the run)...
-- Result: for each 1 if it was removed; count of claims, if any was removed
--
-- Deletes rows that are OPEN, so that their requests do not run. Rows that are claimed, done or of
-- a later epoch do not change, nor rows of a run whose number is lower than that of the fence.

-- include row

local flags, revoked = {}, 0
for i = 1, #ARGV, 4 do
  local row, epoch = read_row(ARGV[i]), ARGV[i + 1]
  local is_later = epoch ~= '' and row[1] and tonumber(row[1]) > tonumber(epoch)
  local is_revoked = row[2] == 'open' and not is_later and not is_refused(ARGV[i + 2], ARGV[i + 3])
  if is_revoked then
    remove_row(ARGV[i], false)
    revoked = revoked + 1
  end
  flags[#flags + 1] = is_revoked and 1 or 0
end
return {flags, revoked > 0 and call('HINCRBY', prefix .. 'server', 'count', revoked)}
