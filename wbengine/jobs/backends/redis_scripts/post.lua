-- Arguments: (uuid, rank, document)...
-- Result: for each 0 if it is in the trash, or 1: posted now, its score, time of posting and
--   document
--
-- Posts jobs and notifies listeners. A job that exists does not change.

-- include board

local replies, any_posted = {}, false
for n = 1, #ARGV, 3 do
    local uuid, rank, document = ARGV[n], ARGV[n + 1], ARGV[n + 2]
    if redis.call('HEXISTS', trash, uuid) == 1 then
        replies[#replies + 1] = 0
    else
        local posted = redis.call('HEXISTS', jobs, uuid) == 0
        if posted then
            local score = string.format('%.0f', rank * 2 ^ 50 + redis.call('INCR', sequence))
            redis.call('HSET', jobs, uuid, string.format('%.0f', now) .. ' ' .. document)
            redis.call('HSET', updated, uuid, now)
            redis.call('ZADD', all, score, uuid)
            redis.call('ZADD', free, score, uuid)
            any_posted = true
        end
        replies[#replies + 1] = {posted and 1 or 0, redis.call('ZSCORE', all, uuid),
            redis.call('HGET', jobs, uuid)}
    end
end
-- pcall: a user without the right to publish sends no notification.
if any_posted then redis.pcall('PUBLISH', jobs, '') end
return replies
