-- Arguments: user, its session, digests, 1: also replace OPEN rows with lower epochs, milliseconds
--   to keep results or '', (id, epoch, id of the fence or '', number of the run)...
-- Result: digest, count of claims; nil: the session is over
--
-- Creates rows that do not exist. Rows that exist stay, unless they may be replaced. Rows of a run
-- whose number is lower than that of the fence do not change.

-- include row
-- include create_row
-- include register
-- include session

if not is_session(ARGV[1], ARGV[2]) then return false end
local time, row_times = now(), {}
for i = 6, #ARGV, 4 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  local row = read_row(id)
  local is_replaced = ARGV[4] == '1' and row[2] == 'open' and tonumber(row[1]) < tonumber(epoch)
  if (not row[1] or is_replaced) and not is_refused(ARGV[i + 2], ARGV[i + 3]) then
    create_row(id, epoch, ledger_info()[2] or 0, ARGV[5])
    row_times[#row_times + 1] = time
    row_times[#row_times + 1] = id
  end
end
if #row_times > 0 then call('ZADD', prefix .. 'rows', unpack(row_times)) end
return register_user(ARGV[3], ARGV[1], time)
