-- Result: 0 if the id of the data has changed and the consumer has not joined, else 1
--
-- A consumer joins only data that contains the declarations of its process. Records a report of the
-- consumer and a heartbeat of the holder.

-- include reporting

first_write()
if data_id ~= '' and call('HGET', meta_key, 'id') ~= data_id then return 0 end
-- With this field, the key of its messages is never deleted, and keeps its expiry.
call('HSET', held_key(consumer), '', '')
report(consumer, holder)
call('PEXPIRE', consumers_key, UNUSED_KEY_MS)
return 1
