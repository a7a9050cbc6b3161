-- Arguments: user, its session, id, epoch, holder
-- Result: 1 if the row was held; nil: the session is over
--
-- Changes a row that the holder has claimed back to OPEN. Other rows do not change.

-- include row
-- include release_row
-- include session

if not is_session(ARGV[1], ARGV[2]) then return false end
local id, row = ARGV[3], read_row(ARGV[3])
if not is_held_by(ARGV[5], row, ARGV[4]) then return 0 end
first_write()
release_row(id, ARGV[5], now())
return 1
