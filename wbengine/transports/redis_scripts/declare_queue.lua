-- Result: id of the data
--
-- Creates the queue unless it exists. An owned queue is deleted when its owner stops reporting.
-- After a loss of data, the id of the data is another one.

-- include server

first_write()
if call('HSETNX', meta_key, 'id', new_id) == 1 then
  call('HSET', meta_key, 'v', 0, 'f', FORMAT)
  call('PEXPIRE', meta_key, UNUSED_KEY_MS)
end
call('SADD', prefix .. 'qs', queue)
call('PEXPIRE', prefix .. 'qs', UNUSED_KEY_MS)
if is_owned then
  call('ZADD', prefix .. 'own', now(), queue)
  call('PEXPIRE', prefix .. 'own', UNUSED_KEY_MS)
end
return call('HGET', meta_key, 'id')
