-- Arguments: digests, user, holder
-- Result: digest, count of claims
--
-- Records a heartbeat of a holder, and keeps its rows from expiring.

-- include row
-- include register

first_write()
local time, held_key = now(), prefix .. 'held:' .. ARGV[3]
call('ZADD', prefix .. 'beats', time, ARGV[3])
-- The row of a task that runs for days must not expire before the task ends.
local sample = call('SRANDMEMBER', held_key)
local remaining = sample and call('PTTL', prefix .. 'r:' .. sample) or -1
if remaining >= 0 and remaining < ROW_MS / 2 then
  for _, id in ipairs(call('SMEMBERS', held_key)) do prolong_row(id) end
end
return register_user(ARGV[1], ARGV[2], time, true)
