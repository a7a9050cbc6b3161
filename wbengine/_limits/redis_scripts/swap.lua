-- Key: account
-- Arguments: value that was read or '', new value or '' to delete it, milliseconds until it expires
-- Result: 1, or 0 if the account has changed since it was read
--
-- Writes an account unless it changed since it was read. Otherwise nothing changes.

if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
