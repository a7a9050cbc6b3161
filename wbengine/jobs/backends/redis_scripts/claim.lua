-- Result: nil: no job; 1, number of claims; or 0, number of claims, time of the last change, token
--   and owner of the present claim, milliseconds until it expires
--
-- Gives an unclaimed job to exactly one owner. If the claim already exists, the answer to an
-- earlier attempt was lost, and this one is the same.

-- include board

if redis.call('HEXISTS', jobs, uuid) == 0 then return false end
local owner, left = owner_of(uuid)
if owner == claim then return {1, redis.call('HGET', claims, uuid)} end
local at = redis.call('HGET', updated, uuid)
if owner then return {0, redis.call('HGET', claims, uuid), at, owner, left} end
return {1, own(uuid, claim, expiry)}
