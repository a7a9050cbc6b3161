-- Arguments: user, holder...
--
-- Closes the ledger for a user. The last user removes everything, unless there are rows.

-- include row

local silent_since = now() - 15000
if call('ZCOUNT', prefix .. 'c', silent_since, '+inf') == 0 then
  for _, user in ipairs(call('ZRANGEBYSCORE', prefix .. 'users', '-inf', silent_since)) do
    if string.sub(user, -2) == '.c' then
      call('ZREM', prefix .. 'users', user)
      call('DEL', prefix .. 'session:' .. user)
    end
  end
end
for i = 2, #ARGV do
  if call('EXISTS', prefix .. 'held:' .. ARGV[i]) == 0 then
    call('ZREM', prefix .. 'beats', ARGV[i])
  end
end
call('ZREM', prefix .. 'users', ARGV[1])
call('DEL', prefix .. 'session:' .. ARGV[1])
if call('EXISTS', prefix .. 'users', prefix .. 'rows') == 0 then
  for _, key in ipairs({'ledger', 'former', 'server', 'beats', 'swept'}) do
    call('DEL', prefix .. key)
  end
end
