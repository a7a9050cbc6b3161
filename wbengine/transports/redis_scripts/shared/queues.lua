-- M, C: keys of the routing and of the consumers
-- ring(queue) -> false if the queue has a wake-up already

-- include server

local M, C = P .. 'm', P .. 'c'
local function ring(queue)
  local bell = P .. 'bell:' .. queue
  if call('EXISTS', bell) == 1 then return false end
  call('RPUSH', bell, 1)
  call('PEXPIRE', bell, TTL)
  return true
end
