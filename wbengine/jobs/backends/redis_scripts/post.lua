-- Result: for each 0 if it is in the trash, or 1: posted now, its score, time of posting and
--   document
--
-- Posts jobs and notifies listeners. A job that exists does not change.

-- include board
-- include turns

local replies, any_posted = {}, false
for _, job in ipairs(new_jobs) do
    local uuid, queue, key = job.uuid, job.queue, job.fair_key
    if redis.call('HEXISTS', trash, uuid) == 1 then
        replies[#replies + 1] = 0
    else
        local posted = redis.call('HEXISTS', jobs, uuid) == 0
        if posted then
            local score = string.format('%.0f', job.rank * 2 ^ 50 + redis.call('INCR', sequence))
            redis.call('HSET', jobs, uuid, string.format('%.0f', now) .. ' ' .. job.document)
            redis.call('HSET', updated, uuid, now)
            redis.call('ZADD', all, score, uuid)
            if not is_plain(queue, key) or tonumber(job.weight) ~= 1 then
                redis.call('HSET', places, uuid, queue .. '\0' .. job.weight .. '\0' .. key)
            end
            if is_plain(queue, key) then
                redis.call('ZADD', free, score, uuid)
            else
                redis.call('ZADD', waiting, 0, member(uuid, queue .. '\0' .. key))
            end
            enter(queue, key)
            any_posted = true
        end
        replies[#replies + 1] = {posted and 1 or 0, redis.call('ZSCORE', all, uuid),
            redis.call('HGET', jobs, uuid)}
    end
end
-- pcall: a user without the right to publish sends no notification.
if any_posted then redis.pcall('PUBLISH', jobs, '') end
return replies
