-- Arguments: digests, user
-- Result: digest, count of claims
--
-- Registers a user of the ledger, and creates the ledger if there is none. An existing digest
-- stays.

-- include row
-- include register

return register_user(ARGV[1], ARGV[2], now(), true)
