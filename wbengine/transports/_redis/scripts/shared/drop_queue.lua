-- purge(queue): delete the waiting messages -> their number
-- drop_queue(queue): delete a queue with its bindings -> number of waiting messages

-- include settling

local function purge(queue)
  local count = 0
  repeat
    local popped = call('ZPOPMIN', queue_key(queue), 500)
    for k = 1, #popped, 2 do delete_body(popped[k]) end
    count = count + #popped / 2
  until #popped == 0
  return count
end
local function drop_queue(queue)
  local waiting = purge(queue)
  call('DEL', prefix .. 'bell:' .. queue)
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
