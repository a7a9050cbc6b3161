-- Result: 1 if the claim exists, else 0
--
-- Sets the time at which a claim expires. An expired claim is not extended.

-- include board

local owner = owner_of(uuid)
if not owner or (token ~= '' and string.sub(owner, 1, 32) ~= token) then return 0 end
redis.call('ZADD', ends, now + expiry, uuid)
return 1
