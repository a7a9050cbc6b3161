-- Result: 0 if the id of the data has changed and the consumer has not joined, else 1
--
-- A consumer joins only data that contains the declarations of its process.

-- include server

first_write()
if data_id ~= '' and call('HGET', meta_key, 'id') ~= data_id then return 0 end
call('ZADD', consumers_key, now(), consumer)
call('PEXPIRE', consumers_key, UNUSED_KEY_MS)
return 1
