-- Arguments: digests, user, digest of a request
-- Result: result of register_user(), 1 if the ledger has this digest, or had it before a loss
--
-- Registers a user, and tells whether the row of a request would be here.

-- include row
-- include register

local registration = register_user(ARGV[1], ARGV[2], now(), true)
local is_former = call('SISMEMBER', prefix .. 'former', ARGV[3])
return {registration, registration[1] == ARGV[3] and 1 or is_former}
