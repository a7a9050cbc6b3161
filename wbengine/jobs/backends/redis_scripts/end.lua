-- Result: nil: no job; 1; or, if another claim exists, 0 and the values of `claim`
--
-- Ends a claim: the job is unclaimed again, in the trash, or deleted. A job with another claim does
-- not change.

-- include board

local job = redis.call('HGET', jobs, uuid)
if not job then return false end
local owner, left = owner_of(uuid)
local ours = owner and string.sub(owner, 33) == who
if not ours or (token ~= '' and string.sub(owner, 1, 32) ~= token) then
    return {0, redis.call('HGET', claims, uuid) or 0, redis.call('HGET', updated, uuid),
        owner or '', left or ''}
end
if how == 'abandon' then
    release(uuid)
    redis.call('HSET', updated, uuid, now)
    return {1}
end
if how == 'trash' then redis.call('HSET', trash, uuid, job) end
for _, key in ipairs({jobs, owners, claims, updated, places}) do redis.call('HDEL', key, uuid) end
for _, key in ipairs({all, ends}) do redis.call('ZREM', key, uuid) end
return {1}
