-- Arguments: user, its session, id, epoch, holder
-- Result: 1 if the row was held; nil: the session is over
--
-- Changes a row that the holder has claimed back to OPEN. Other rows do not change.

-- include row
-- include release_row
-- include in_session

local id, there = ARGV[3], row(ARGV[3])
if not is_held_by(ARGV[5], there, ARGV[4]) then return 0 end
call('PEXPIRE', P .. 'rows', LEDGER_TTL)
unclaim(id, ARGV[5], now())
return 1
