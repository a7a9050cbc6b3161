-- keep(id, ID of a body) -> mark of the body, which from now on is deleted with the row
--
-- If the row may expire before the queue of a silent engine, the body expires with that queue.

-- include server

local function keep(id, body)
  local r, b = P .. 'r:' .. id, P .. 'b:' .. body
  call('HSET', r, 'b', body)
  local left = call('PTTL', r)
  if left < 0 then call('PERSIST', b) else call('PEXPIRE', b, math.max(left, OWNED)) end
  return '&' .. body
end
