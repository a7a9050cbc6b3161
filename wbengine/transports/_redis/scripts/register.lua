-- Result: that of register_user(); 1 if the ledger has the argument `digest`, or had it before a loss
--   of data
--
-- Registers a user of the ledger, and creates the ledger if there is none. An existing digest
-- stays. Records a heartbeat of a holder, and keeps its rows from expiring.

-- include users
-- include rows

first_write()
local held_rows_key = prefix .. 'held:' .. holder
if holder ~= '' then
  call('ZADD', prefix .. 'beats', now(), holder)
  call('PEXPIRE', held_rows_key, LEDGER_MS)
end
-- The row of a task that runs for days must not expire before the task ends.
local sample = holder ~= '' and call('SRANDMEMBER', held_rows_key)
local remaining = sample and call('PTTL', prefix .. 'r:' .. sample) or -1
if remaining >= 0 and remaining < ROW_MS / 2 then
  for _, id in ipairs(call('SMEMBERS', held_rows_key)) do prolong_row(id) end
end
local registration = register_user(digests, user, true)
local is_present = registration[1] == digest
registration[4] = is_present and 1 or call('SISMEMBER', prefix .. 'former', digest)
return registration
