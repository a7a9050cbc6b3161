-- Arguments: id for new data, queue, 1: owned
-- Result: id of the data
--
-- Creates the queue unless it exists. An owned queue is deleted when its owner stops reporting.

-- include data_id
-- include first_write

local id = made(ARGV[1])
call('SADD', P .. 'qs', ARGV[2])
call('PEXPIRE', P .. 'qs', TTL)
if ARGV[3] == '1' then
  call('ZADD', P .. 'own', now(), ARGV[2])
  call('PEXPIRE', P .. 'own', TTL)
end
return id
