-- keep_body(id, ID of a body) -> mark of the body, which from now on is deleted with the row
--
-- If the row may expire before the queue of a silent engine, the body expires with that queue.

-- include server

local function keep_body(id, body)
  local row_key, body_key = prefix .. 'r:' .. id, prefix .. 'b:' .. body
  call('HSET', row_key, 'b', body)
  local remaining = call('PTTL', row_key)
  if remaining < 0 then
    call('PERSIST', body_key)
  else
    call('PEXPIRE', body_key, math.max(remaining, OWNED_QUEUE_MS))
  end
  return '&' .. body
end
