-- Result: (uuid, score, time of posting and document, number of claims)...; of a claimed job that
--   is left out, only uuid and score
--
-- Lists jobs in the order of their scores.

-- include board

local members = redis.call('ZRANGEBYSCORE', all, after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local rows = {}
for n = 1, #members, 2 do
    local uuid = members[n]
    local row = {uuid, members[n + 1]}
    if not (only_unclaimed and owner_of(uuid)) then
        row[3] = redis.call('HGET', jobs, uuid) or ''
        row[4] = redis.call('HGET', claims, uuid) or 0
    end
    rows[#rows + 1] = row
end
return rows
