-- Make the first write of a script one that needs no memory. A server without free memory then
-- refuses none of the writes that follow.

-- include queues

call('PEXPIRE', M, TTL)
