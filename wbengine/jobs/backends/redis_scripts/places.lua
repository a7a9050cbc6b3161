-- Result: (score, queue, fair key, 1 if claimed, time of posting)...
--
-- Lists the places of jobs in the order of their scores.

-- include board

local members = redis.call('ZRANGEBYSCORE', all, after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local rows = {}
for n = 1, #members, 2 do
    local uuid = members[n]
    local queue, key = place_of(uuid)
    local posted = string.match(redis.call('HGET', jobs, uuid) or '', '^%d+') or '0'
    rows[#rows + 1] = {members[n + 1], queue, key, owner_of(uuid) and 1 or 0, posted}
end
return rows
