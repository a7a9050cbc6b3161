-- purge(queue): delete the waiting messages -> their number
-- drop_queue(queue): delete a queue with its bindings -> number of waiting messages

-- include settling

local function purge(queue)
  local numbers = call('ZRANGE', prefix .. 'q:' .. queue, 0, -1)
  for _, number in ipairs(numbers) do delete_messages(queue, {number}) end
  call('DEL', prefix .. 'q:' .. queue)
  return #numbers
end
local function drop_queue(queue)
  local waiting = purge(queue)
  call('DEL', data_key(queue), prefix .. 'bell:' .. queue)
  call('SREM', prefix .. 'qs', queue)
  call('ZREM', prefix .. 'own', queue)
  for _, binding in ipairs(call('HKEYS', prefix .. 'b')) do
    if string.match(binding, '^[^%z]*%z([^%z]*)%z') == queue then
      call('HDEL', prefix .. 'b', binding)
      call('HINCRBY', meta_key, 'v', 1)
    end
  end
  return waiting
end
