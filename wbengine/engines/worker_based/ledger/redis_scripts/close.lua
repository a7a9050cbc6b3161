-- Arguments: user, holder...
--
-- Closes the ledger for a user. The last user removes everything, unless there are rows.

-- include row

local gone = now() - 15000
if call('ZCOUNT', P .. 'c', gone, '+inf') == 0 then
  for _, user in ipairs(call('ZRANGEBYSCORE', P .. 'users', '-inf', gone)) do
    if string.sub(user, -2) == '.c' then
      call('ZREM', P .. 'users', user)
      call('DEL', P .. 'session:' .. user)
    end
  end
end
for i = 2, #ARGV do
  if call('EXISTS', P .. 'held:' .. ARGV[i]) == 0 then call('ZREM', P .. 'beats', ARGV[i]) end
end
call('ZREM', P .. 'users', ARGV[1])
call('DEL', P .. 'session:' .. ARGV[1])
if call('EXISTS', P .. 'users', P .. 'rows') == 0 then
  call('DEL', P .. 'ledger', P .. 'server', P .. 'beats', P .. 'swept')
end
