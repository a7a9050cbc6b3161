-- Return the routing if an outdated version selected the queues, and false if an out-of-line body
-- does not exist. Nothing is changed then.
--
-- place(queue, priority, message, mark and ID of an out-of-line body, or '') -> 1 if the queue
--   exists
-- put(): write all placed messages
-- apart(n) -> mark and ID of the out-of-line body of message n, or ''

-- include queues
-- include routing

local known, total = {}, 0
local function place(queue, priority, data, body)
  if known[queue] == nil then
    known[queue] = call('SISMEMBER', P .. 'qs', queue) == 1 and {}
  end
  local new = known[queue]
  if not new then return 0 end
  -- 2^49 numbers for each priority: a place is an integer that a double holds.
  new[#new + 1] = {(9 - priority) * 562949953421312, data, body}
  if string.sub(body, 1, 1) == '@' then
    call('PEXPIRE', P .. 'b:' .. string.sub(body, 2), BODY_TTL)
  end
  total = total + 1
  return 1
end
local function put()
  if total == 0 then return end
  local number = call('HINCRBY', M, 'n', total) - total
  for queue, new in pairs(known) do
    if new then
      local q, d, data, places = P .. 'q:' .. queue, P .. 'd:' .. queue, {}, {}
      for k, message in ipairs(new) do
        number = number + 1
        data[2 * k - 1], data[2 * k] = number, message[2]
        places[2 * k - 1] = string.format('%.0f', message[1] + number)
        places[2 * k] = number .. message[3]
      end
      call('HSET', d, unpack(data))
      call('ZADD', q, unpack(places))
      if ring(queue) then
        call('PEXPIRE', q, TTL)
        call('PEXPIRE', d, TTL)
      end
    end
  end
end
if ARGV[1] ~= version then
  return {version, call('HGETALL', P .. 'x'), call('HKEYS', P .. 'b')}
end
local bodies = {}
for n, id in string.gmatch(ARGV[2], '(%d+):(%x+)') do
  if call('EXISTS', P .. 'b:' .. id) == 0 then return false end
  bodies[n + 1] = id
end
local function apart(n) return bodies[n] and '@' .. bodies[n] or '' end
