-- Arguments: consumer, id of the data with the first declaration of its process, or ''
-- Result: 0 if the id has changed and the consumer has not joined, else 1
--
-- A consumer joins only data that contains the declarations of its process.

-- include queues

first_write()
if ARGV[2] ~= '' and call('HGET', meta_key, 'id') ~= ARGV[2] then return 0 end
call('ZADD', consumers_key, now(), ARGV[1])
call('PEXPIRE', consumers_key, UNUSED_KEY_MS)
return 1
