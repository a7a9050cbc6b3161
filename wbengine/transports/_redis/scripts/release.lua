-- Result: 1 if the row was held; nil: the session is over
--
-- Changes a row that the holder has claimed back to OPEN. Other rows do not change.

-- include rows
-- include users

if not is_session(user, session) then return false end
local row = read_row(id)
if not is_held_by(holder, row, epoch) then return 0 end
first_write()
reopen_row(id, row)
return 1
