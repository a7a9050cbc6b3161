-- Result: 1 if there is such an unclaimed job, else 0
--
-- Lets a job be taken as that of a flow that has begun, also while its queue is paused.

-- include board

if redis.call('HEXISTS', jobs, uuid) == 0 or owner_of(uuid) then return 0 end
offer(uuid)
redis.pcall('PUBLISH', jobs, '')
return 1
