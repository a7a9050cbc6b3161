-- jobs, all, free, owners, ends, claims, updated, trash, sequence: the keys, in the order of
--   `_KEYS`
-- now: time of the server in milliseconds
-- release(uuid): end the claim of a job
-- owner_of(uuid) -> token and owner of its claim or false, milliseconds until the claim expires or
--   ''
--
-- A job is in `jobs` (time of posting and document) and in `all`. It is in `free` if unclaimed;
-- otherwise it is in `owners` (token of the claim and owner's name), and in `ends` if the claim
-- expires. A step releases at most a hundred expired claims, so its work is limited.

local jobs, all, free, owners, ends, claims, updated, trash, sequence = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function release(uuid)
    redis.call('ZREM', ends, uuid)
    redis.call('HDEL', owners, uuid)
    local score = redis.call('ZSCORE', all, uuid)
    if score then redis.call('ZADD', free, score, uuid) end
end
for _, uuid in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)) do
    release(uuid)
end
local function owner_of(uuid)
    local left = redis.call('ZSCORE', ends, uuid)
    if left and tonumber(left) <= now then
        release(uuid)
        return false
    end
    return redis.call('HGET', owners, uuid), left and left - now or ''
end
