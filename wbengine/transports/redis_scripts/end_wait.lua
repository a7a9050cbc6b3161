-- Argument: consumer
--
-- Ends the blocking wait of a consumer. If it does not wait now, its next wait ends at once.

-- include queues

first_write()
call('RPUSH', prefix .. 'n:' .. ARGV[1], 1)
call('PEXPIRE', prefix .. 'n:' .. ARGV[1], 60000)
