-- drop(queue) -> number of waiting messages of a queue, which is deleted with its bindings

-- include queues
-- include delete_messages

local function drop(queue)
  local waited = clear(queue)
  call('DEL', P .. 'd:' .. queue, P .. 'bell:' .. queue)
  call('SREM', P .. 'qs', queue)
  call('ZREM', P .. 'own', queue)
  for _, binding in ipairs(call('HKEYS', P .. 'b')) do
    if string.match(binding, '^[^%z]*%z([^%z]*)%z') == queue then
      call('HDEL', P .. 'b', binding)
      call('HINCRBY', M, 'v', 1)
    end
  end
  return waited
end
