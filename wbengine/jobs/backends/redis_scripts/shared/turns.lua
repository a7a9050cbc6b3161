-- TAG_CHARACTERS: width of a tag
-- enter(queue, key): give a key with waiting jobs its turn, unless it has one
-- turn_at(queue, skip) -> key and turn after so many others of a queue, or nil
-- note(set, queue, key, turn): move a key to `turns` or `idle`, with its next turn
-- forget_idle(queue): delete turns of keys without waiting jobs that have no effect any more
--
-- Each key with waiting jobs has a turn in its queue, and the lowest one is next. A key whose job
-- is taken gets a turn that is later by 1 / weight. A key that had no jobs gets the turn that is
-- due, or its own one if that is later (start-time fair queueing). The tag of a turn is its number,
-- then a sequence for equal ones, in a fixed width. A key has its tag in `tags`, and is in `turns`,
-- or in `idle` if it has no waiting jobs (both by queue, tag).

local TAG_CHARACTERS, TURN_CHARACTERS = 37, 21
local function in_queue(set, queue, command, skip)
    local low, high = '[' .. queue .. '\0', '(' .. queue .. '\1'
    if command == 'ZREVRANGEBYLEX' then low, high = high, low end
    return redis.call(command, set, low, high, 'LIMIT', skip, 1)[1]
end
local function turn_of(queue, entry)
    return tonumber(string.sub(entry, #queue + 2, #queue + 1 + TURN_CHARACTERS))
end
local function key_of(queue, entry)
    return string.sub(entry, #queue + 2 + TAG_CHARACTERS)
end
local function turn_at(queue, skip)
    local entry = in_queue(turns, queue, 'ZRANGEBYLEX', skip)
    if entry then return key_of(queue, entry), turn_of(queue, entry) end
end
-- A job with a lower turn than `clock` is left out, so that this is the turn that is due.
local function clock(queue) return queue .. '\0\1' end
local function due(queue)
    local entry = in_queue(turns, queue, 'ZRANGEBYLEX', 0)
        or in_queue(idle, queue, 'ZREVRANGEBYLEX', 0)
    local turn = entry and turn_of(queue, entry) or 0
    return math.max(turn, tonumber(redis.call('HGET', tags, clock(queue)) or 0))
end
local function forget(queue, key)
    local tag = redis.call('HGET', tags, queue .. '\0' .. key)
    if not tag then return end
    local entry = queue .. '\0' .. tag .. key
    redis.call('ZREM', turns, entry)
    redis.call('ZREM', idle, entry)
    redis.call('HDEL', tags, queue .. '\0' .. key)
end
local function note(set, queue, key, turn)
    forget(queue, key)
    local tag = string.format('%021.8f%016.0f', turn, redis.call('INCR', sequence))
    redis.call('HSET', tags, queue .. '\0' .. key, tag)
    redis.call('ZADD', set, 0, queue .. '\0' .. tag .. key)
end
local function enter(queue, key)
    local tag = redis.call('HGET', tags, queue .. '\0' .. key)
    if tag and redis.call('ZSCORE', turns, queue .. '\0' .. tag .. key) then return end
    local own = tag and tonumber(string.sub(tag, 1, TURN_CHARACTERS)) or 0
    note(turns, queue, key, math.max(due(queue), own))
end
local function forget_idle(queue)
    local high = string.format('%021.8f', due(queue)) .. '\255'
    local over = redis.call('ZRANGEBYLEX', idle, '[' .. queue .. '\0', '(' .. queue .. '\0' .. high,
        'LIMIT', 0, 100)
    for _, entry in ipairs(over) do forget(queue, key_of(queue, entry)) end
end
