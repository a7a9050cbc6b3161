-- Closes the ledger for a user. The last user removes everything, unless there are rows.

-- include server

local silent_since = now() - 15000
if call('ZCOUNT', prefix .. 'c', silent_since, '+inf') == 0 then
  for _, other in ipairs(call('ZRANGEBYSCORE', prefix .. 'users', '-inf', silent_since)) do
    if string.sub(other, -2) == '.c' then
      call('ZREM', prefix .. 'users', other)
      call('DEL', prefix .. 'session:' .. other)
    end
  end
end
for _, holder in ipairs(holders) do
  if call('EXISTS', prefix .. 'held:' .. holder) == 0 then
    call('ZREM', prefix .. 'beats', holder)
  end
end
call('ZREM', prefix .. 'users', user)
call('DEL', prefix .. 'session:' .. user)
if call('EXISTS', prefix .. 'users', prefix .. 'rows') == 0 then
  for _, key in ipairs({'ledger', 'former', 'server', 'beats', 'swept'}) do
    call('DEL', prefix .. key)
  end
end
