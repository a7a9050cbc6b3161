-- Key: account
-- Result: 1, or 0 if the account has changed since it was read
--
-- Writes an account unless it changed since it was read. Otherwise nothing changes.

if (redis.call('GET', KEYS[1]) or '') ~= old then return 0 end
if new == '' then redis.call('DEL', KEYS[1])
else redis.call('SET', KEYS[1], new, 'PX', expiry) end
return 1
