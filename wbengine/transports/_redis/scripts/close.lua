-- Closes the ledger for a user. The last user removes everything, unless there are rows. Users that
-- consume and were killed do not count, after the others had time to report.

-- include silence

if had_time() ~= false and call('ZCOUNT', consumers_key, silent_since, '+inf') == 0 then
  local users = call('HGETALL', prefix .. 'users')
  for i = 1, #users, 2 do
    local is_silent = tonumber(string.match(users[i + 1], '^%d+')) < silent_since
    if is_silent and string.sub(users[i], -2) == '.c' then
      call('HDEL', prefix .. 'users', users[i])
    end
  end
end
for _, holder in ipairs(holders) do
  if call('EXISTS', prefix .. 'held:' .. holder) == 0 then
    call('ZREM', prefix .. 'beats', holder)
  end
end
call('HDEL', prefix .. 'users', user)
if call('EXISTS', prefix .. 'users', prefix .. 'rows') == 0 then
  for _, key in ipairs({'former', 'server', 'beats', 'swept'}) do
    call('DEL', prefix .. key)
  end
end
