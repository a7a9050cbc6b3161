-- Arguments: 'free' or 'all', minimum score, maximum number
-- Result: (uuid, score, time of posting and document, number of claims)...
--
-- Lists jobs in the order of their scores.

-- include board

local which, after, limit = unpack(ARGV)
local members = redis.call('ZRANGEBYSCORE', which == 'free' and free or all,
    after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local rows = {}
for n = 1, #members, 2 do
    local uuid = members[n]
    rows[#rows + 1] = {uuid, members[n + 1], redis.call('HGET', jobs, uuid) or '',
        redis.call('HGET', claims, uuid) or 0}
end
return rows
