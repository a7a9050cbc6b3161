-- Result: 1 if the row was held; nil: the session is over
--
-- Changes a row that the holder has claimed back to OPEN. Other rows do not change.

-- include releasing
-- include rows
-- include users

if not is_session(user, session) then return false end
if not is_held_by(holder, read_row(id), epoch) then return 0 end
first_write()
release_row(id, holder)
return 1
