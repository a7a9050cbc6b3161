-- jobs, all, free, owners, ends, claims, updated, trash, sequence, places, waiting, begun, turns,
--   idle, tags, pauses, served, repeated: the keys, in the order of `_KEYS`
-- now: time of the server in milliseconds
-- is_repetition: whether this repeats a step without an answer
-- place_of(uuid) -> queue, fair key, weight
-- is_plain(queue, key) -> whether jobs without a key wait in `free`
-- SCORE_CHARACTERS: digits of a score in a member
-- member(uuid, prefix) -> member of `waiting` (prefix: queue NUL key) or `begun` (prefix: queue)
-- offer(uuid): let a job without a claim be taken before flows that have not begun
-- release(uuid): end the claim of a job
-- owner_of(uuid) -> token and owner of its claim or false, milliseconds until the claim expires or
--   ''
-- own(uuid, claim, expiry) -> number of claims: claim a job that has no claim
--
-- A job is in `jobs` (time of posting and document), in `all` by its score (priority and age), and
-- in `places` unless it has the default place. If claimed, it is in `owners` (token of the claim and
-- owner's name), and in `ends` if the claim expires. Otherwise it waits: in `free` (by score) if it
-- has no key in the queue `default`, as earlier releases store all jobs, or in `waiting` (by queue,
-- key, score). If it was claimed before, it is in `begun` (by queue, score) instead of `waiting`,
-- but stays in `free`, where earlier releases read it.
--
-- Pauses are in `pauses` (time and JSON, by name of the queue), and reports of conductors in
-- `served` (names of queues by time).
--
-- The last arguments of each step are a token, which its repetition also has, and 1 for a
-- repetition, else 0. `repeated` contains the tokens of repetitions (by time). An attempt that is
-- executed after its repetition has no effect, and no client reads its answer.
--
-- A step releases at most a hundred expired claims, so its work is limited.

local jobs, all, free, owners, ends, claims, updated, trash, sequence, places, waiting, begun,
    turns, idle, tags, pauses, served, repeated = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Time for which a late attempt is recognized.
local LATE_MILLISECONDS = 600000
local is_repetition = table.remove(ARGV) == '1'
local step = table.remove(ARGV)
if is_repetition then
    redis.call('ZREMRANGEBYSCORE', repeated, '-inf', now - LATE_MILLISECONDS)
    redis.call('ZADD', repeated, now, step)
elseif redis.call('ZSCORE', repeated, step) then
    return false
end
local function place_of(uuid)
    local place = redis.call('HGET', places, uuid)
    if not place then return 'default', '', 1 end
    local queue, weight, key = string.match(place, '^(%Z*)%z(%Z*)%z(.*)$')
    return queue, key, tonumber(weight)
end
local SCORE_CHARACTERS = 16
local function member(uuid, prefix)
    local score = redis.call('ZSCORE', all, uuid) or 0
    return prefix .. '\0' .. string.format('%016.0f', score) .. uuid
end
local function is_plain(queue, key)
    return queue == 'default' and key == ''
end
local function withdraw(uuid)
    local queue, key = place_of(uuid)
    redis.call('ZREM', begun, member(uuid, queue))
    redis.call('ZREM', free, uuid)
    if not is_plain(queue, key) then
        redis.call('ZREM', waiting, member(uuid, queue .. '\0' .. key))
    end
end
local function offer(uuid)
    local queue, key = place_of(uuid)
    withdraw(uuid)
    if is_plain(queue, key) then
        redis.call('ZADD', free, redis.call('ZSCORE', all, uuid), uuid)
    end
    redis.call('ZADD', begun, 0, member(uuid, queue))
end
local function release(uuid)
    redis.call('ZREM', ends, uuid)
    redis.call('HDEL', owners, uuid)
    if redis.call('ZSCORE', all, uuid) then offer(uuid) end
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
local function own(uuid, claim, expiry)
    withdraw(uuid)
    redis.call('HSET', owners, uuid, claim)
    if expiry ~= '' then redis.call('ZADD', ends, now + expiry, uuid) end
    redis.call('HSET', updated, uuid, now)
    return redis.call('HINCRBY', claims, uuid, 1)
end
