-- read_session(user) -> number of the session, and of the last row; nil if there is none
-- is_session(user, number) -> whether this is the number of its session
-- begin_session(user, number, last row)
--
-- Steps of another session have no effect.

-- include server

local function read_session(user)
  local stored = call('GET', prefix .. 'session:' .. user) or ''
  local number, last_row = string.match(stored, '^(%d+) (%S+)$')
  return number, last_row
end
local function is_session(user, number) return read_session(user) == number end
local function begin_session(user, number, last_row)
  call('SET', prefix .. 'session:' .. user, number .. ' ' .. last_row, 'PX', LEDGER_MS)
end
