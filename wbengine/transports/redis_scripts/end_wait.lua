-- Argument: consumer
--
-- Ends the blocking wait of a consumer. A consumer that does not wait now does not block the next
-- time.

-- include queues
-- include first_write

call('RPUSH', P .. 'n:' .. ARGV[1], 1)
call('PEXPIRE', P .. 'n:' .. ARGV[1], 60000)
