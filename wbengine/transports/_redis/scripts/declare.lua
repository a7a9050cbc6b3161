-- Result: id of the data
--
-- Creates queues unless they exist, then adds and removes bindings of existing ones. An owned queue
-- is deleted when its owner stops reporting. A change of the bindings changes the version of the
-- routing, so that publishers with the old routing read it again. After a loss of data, the id of
-- the data is another one.

-- include server

first_write()
if #queues > 0 and call('HSETNX', meta_key, 'id', new_id) == 1 then
  call('HSET', meta_key, 'v', 0, 'f', FORMAT)
  call('PEXPIRE', meta_key, UNUSED_KEY_MS)
end
for _, queue in ipairs(queues) do
  call('SADD', prefix .. 'qs', queue.name)
  if queue.is_owned then call('ZADD', prefix .. 'own', now(), queue.name) end
end
local function name_of(binding)
  return binding.exchange .. '\0' .. binding.queue .. '\0' .. binding.key
end
local changes = 0
for _, binding in ipairs(bound) do
  if call('SISMEMBER', prefix .. 'qs', binding.queue) == 1 then
    changes = changes + call('HSET', prefix .. 'b', name_of(binding), 1)
  end
end
for _, binding in ipairs(unbound) do
  changes = changes + call('HDEL', prefix .. 'b', name_of(binding))
end
if changes > 0 then call('HINCRBY', meta_key, 'v', 1) end
for _, key in ipairs({'qs', 'own', 'b'}) do call('PEXPIRE', prefix .. key, UNUSED_KEY_MS) end
return call('HGET', meta_key, 'id') or ''
