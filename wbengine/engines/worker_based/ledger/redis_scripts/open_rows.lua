-- Arguments: user, its session, digest, 1: also replace OPEN rows with lower epochs, milliseconds
--   to keep results or '', (id, epoch)...
-- Result: digest, count of claims; nil: the session is over
--
-- Creates rows that do not exist. Rows that exist stay, unless they may be replaced.

-- include row
-- include create_row
-- include register
-- include in_session

local t, new = now(), {}
for i = 6, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  local there = row(id)
  if not there[1]
    or (ARGV[4] == '1' and there[2] == 'open' and tonumber(there[1]) < tonumber(epoch))
  then
    make(id, epoch, ledger()[2] or 0, ARGV[5])
    new[#new + 1] = t
    new[#new + 1] = id
  end
end
if #new > 0 then call('ZADD', P .. 'rows', unpack(new)) end
return here(ARGV[3], ARGV[1], t)
