-- Ends the blocking wait of a consumer. If it does not wait now, its next wait ends at once.

-- include server

first_write()
call('RPUSH', prefix .. 'n:' .. consumer, 1)
call('PEXPIRE', prefix .. 'n:' .. consumer, 60000)
