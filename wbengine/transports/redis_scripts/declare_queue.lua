-- Arguments: id for new data, queue, 1: owned
-- Result: id of the data
--
-- Creates the queue unless it exists. An owned queue is deleted when its owner stops reporting.

-- include data_id

first_write()
local id = ensure_data_id(ARGV[1])
call('SADD', prefix .. 'qs', ARGV[2])
call('PEXPIRE', prefix .. 'qs', UNUSED_KEY_MS)
if ARGV[3] == '1' then
  call('ZADD', prefix .. 'own', now(), ARGV[2])
  call('PEXPIRE', prefix .. 'own', UNUSED_KEY_MS)
end
return id
