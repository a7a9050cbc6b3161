-- Arguments: id for new data, exchange, kind
-- Result: id of the data
--
-- Creates the exchange unless it exists. After a loss of data the id is another one.

-- include data_id
-- include first_write

local id = made(ARGV[1])
if call('HSETNX', P .. 'x', ARGV[2], ARGV[3]) == 1 then call('HINCRBY', M, 'v', 1) end
call('PEXPIRE', P .. 'x', TTL)
return id
