-- session(user) -> number of the session, and of the last row; nil if there is none
--   begin_session(user, number, last row)
--
-- Steps of another session have no effect.

-- include server

local function session(user)
  local number, last = string.match(call('GET', P .. 'session:' .. user) or '', '^(%d+) (%S+)$')
  return number, last
end
local function begin_session(user, number, last)
  call('SET', P .. 'session:' .. user, number .. ' ' .. last, 'PX', LEDGER_TTL)
end
