-- Result: (uuid, score, time of posting and document, number of claims)... of the claimed jobs
--
-- Claims the next jobs of the queues: first those of flows that have begun, and then those whose
-- keys are next, unless the queue is paused. Each job is given to exactly one owner. A repetition
-- returns the claims of earlier attempts, if these claimed any, and extends them.

-- include board
-- include turns

limit = tonumber(limit)
local left_out, taken = {}, {}
-- Numbers of jobs to leave that come first in a list, and the last of them, by list.
local skips, lasts = {}, {}
for _, uuid in ipairs(excluded) do left_out[uuid] = true end

local function answer(uuid, number)
    taken[#taken + 1] = {uuid, redis.call('ZSCORE', all, uuid), redis.call('HGET', jobs, uuid),
        number}
end
-- Earlier releases claim jobs without removing them from all lists.
local function is_unclaimed(uuid)
    return redis.call('HEXISTS', jobs, uuid) == 1 and not owner_of(uuid)
end
-- Return the first job of a list that may be claimed, or nil; and whether the list has any job.
local function first_of(list, read, prefix_size)
    while true do
        local skip = skips[list] or 0
        local entry = read(skip)
        if not entry then return nil, skip > 0 end
        local uuid = string.sub(entry, prefix_size + 1)
        if not is_unclaimed(uuid) then
            for _, set in ipairs({free, begun, waiting}) do redis.call('ZREM', set, entry) end
        elseif left_out[uuid] then
            skips[list], lasts[list] = skip + 1, entry
        else
            return uuid, true
        end
    end
end
local function first_in(set, prefix)
    local list = set .. prefix
    -- Behind the last one, because the server would walk over all that are skipped.
    local function read()
        local low = lasts[list] and '(' .. lasts[list] or '[' .. prefix .. '\0'
        return redis.call('ZRANGEBYLEX', set, low, '(' .. prefix .. '\1', 'LIMIT', 0, 1)[1]
    end
    return first_of(list, read, #prefix + 1 + SCORE_CHARACTERS)
end
local function first_of_key(queue, key)
    if not is_plain(queue, key) then return first_in(waiting, queue .. '\0' .. key) end
    return first_of(free, function(skip) return redis.call('ZRANGE', free, skip, skip)[1] end, 0)
end
local function take_begun(queue)
    while #taken < limit do
        local uuid = first_in(begun, queue)
        if not uuid then return end
        answer(uuid, own(uuid, claim, expiry))
    end
end
local function take_new(queue)
    -- Earlier releases post jobs without a turn, and release jobs of all places here.
    if queue == 'default' and redis.call('ZCARD', free) > 0 then enter(queue, '') end
    local skip = 0
    while #taken < limit do
        local key, turn = turn_at(queue, skip)
        if not key then return end
        local uuid, has_any = first_of_key(queue, key)
        if uuid then
            local own_queue, own_key, weight = place_of(uuid)
            if own_queue == queue and own_key == key then
                answer(uuid, own(uuid, claim, expiry))
                local _, has_more = first_of_key(queue, key)
                note(has_more and turns or idle, queue, key, turn + 1 / weight)
                if skip > 0 then redis.call('HSET', tags, clock(queue), turn) end
            else
                offer(uuid)
            end
        elseif has_any then
            skip = skip + 1
        else
            note(idle, queue, key, turn)
        end
    end
end
local function take(queue)
    local count = #taken
    take_begun(queue)
    if redis.call('HEXISTS', pauses, '*') + redis.call('HEXISTS', pauses, queue) == 0 then
        take_new(queue)
    end
    if #taken > count then forget_idle(queue) end
end
-- Return the names of the queues with unclaimed jobs.
local function queue_names()
    local names = {}
    if redis.call('ZCARD', free) > 0 then names.default = true end
    for _, set in ipairs({waiting, begun}) do
        local after = '-'
        while true do
            local entry = redis.call('ZRANGEBYLEX', set, after, '+', 'LIMIT', 0, 1)[1]
            if not entry then break end
            local name = string.match(entry, '^%Z*')
            names[name], after = true, '(' .. name .. '\1'
        end
    end
    local sorted = {}
    for name in pairs(names) do sorted[#sorted + 1] = name end
    table.sort(sorted)
    return sorted
end

if is_repetition then
    local owned = redis.call('HGETALL', owners)
    for n = 1, #owned, 2 do
        if owned[n + 1] == claim then
            if expiry ~= '' then redis.call('ZADD', ends, now + expiry, owned[n]) end
            answer(owned[n], redis.call('HGET', claims, owned[n]))
        end
    end
    if #taken > 0 then return taken end
end
for _, queue in ipairs(queues) do
    if queue == '*' then
        local names = queue_names()
        math.randomseed(tonumber(seed))
        for last = #names, 1, -1 do
            local chosen = math.random(last)
            names[chosen], names[last] = names[last], names[chosen]
            take(names[last])
        end
        break
    end
    take(queue)
end
return taken
