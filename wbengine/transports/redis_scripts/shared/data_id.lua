-- made(id for new data) -> id of the data, which is created if there is none

-- include queues

local function made(fresh)
  if call('HSETNX', M, 'id', fresh) == 1 then
    call('HSET', M, 'v', 0)
    call('PEXPIRE', M, TTL)
  end
  return call('HGET', M, 'id')
end
