-- Result: nil: no job; time of posting and document, score, number of claims, time of the last
--   change, token and owner of the claim, milliseconds until it expires
--
-- Reads one job. An expired claim ends first.

-- include board

local job = redis.call('HGET', jobs, uuid)
if not job then return false end
local owner, left = owner_of(uuid)
return {job, redis.call('ZSCORE', all, uuid), redis.call('HGET', claims, uuid) or 0,
    redis.call('HGET', updated, uuid), owner or '', left or ''}
