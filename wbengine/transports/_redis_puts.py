"""How our Redis transport publishes, in the server: each of these is one step.

All of them are refused, with nothing done, where the routing that chose the queues is not that of
the server any more.  The keys are told in `_redis_scripts`.
"""

from __future__ import annotations

from typing import Final

from wbengine.transports._redis_link import Script
from wbengine.transports._redis_scripts import ALWAYS, HEAD, LABEL, SETTLING, TAKING, VERSION

#: place(queue, priority, message) -> 1 if there is such a queue; all goes in with put()
_PUTTING: Final = """
local known, total = {}, 0
local function place(queue, priority, data)
  if known[queue] == nil then
    known[queue] = call('SISMEMBER', P .. 'qs', queue) == 1 and {}
  end
  local new = known[queue]
  if not new then return 0 end
  -- 2^49 numbers for each priority: a place is an integer that a double holds.
  new[#new + 1] = {(9 - priority) * 562949953421312, data}
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
        places[2 * k - 1], places[2 * k] = string.format('%.0f', message[1] + number), number
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
"""

#: (version of the routing that chose the queues,
#: (priority, message, number of its queues, queue...)...)
#: -> in how many queues each is; or as `ROUTES`, when the version is another one
PUT: Final = Script(HEAD + VERSION + _PUTTING + """
local counts, i = {}, 2
while i <= #ARGV do
  local last, count = i + 2 + ARGV[i + 2], 0
  for k = i + 3, last do count = count + place(ARGV[k], ARGV[i], ARGV[i + 1]) end
  counts[#counts + 1] = count
  i = last + 1
end
put()
return counts
""")  # fmt: skip

#: (version of the routing, holder of claims, number of arguments of a take, those, (id, epoch,
#: result, who took the request, its queue and number, priority, answer, number of its queues,
#: queue...)...)
#: -> in how many queues each answer is, -1: the row is somebody else's, and what the take returned;
#: or as `ROUTES`
#:
#: Stores results, publishes the answers, acknowledges the requests, and takes others.  Whoever
#: removed a row has no use for the answer; if it was lost, its engine may wait for that.
END: Final = Script(HEAD + VERSION + _PUTTING + SETTLING + LABEL + TAKING + ALWAYS + """
local t, holder, last, counts = now(), ARGV[2], 3 + ARGV[3], {}
local i = last + 1
local ended, rows, taken = {}, {}, {}
while i <= #ARGV do
  local id, final, count = ARGV[i], i + 8 + ARGV[i + 8], 0
  local r = P .. 'r:' .. id
  local there = call('HMGET', r, 'e', 's', 'h')
  local same = there[1] == ARGV[i + 1]
  if same and there[2] == 'claimed' and there[3] == holder then
    call('HSET', r, 's', 'done', 'd', ARGV[i + 2], 'h', '', 'k', '')
    ended[#ended + 1] = id
    rows[#rows + 1] = t
    rows[#rows + 1] = id
  elseif there[1] and not (same and there[2] == 'done') then
    count = -1
  end
  for k = i + 9, final do
    if count >= 0 then count = count + place(ARGV[k], ARGV[i + 6], ARGV[i + 7]) end
  end
  local by = ARGV[i + 3] .. ' ' .. ARGV[i + 4]
  taken[by] = taken[by] or {who = ARGV[i + 3], queue = ARGV[i + 4], numbers = {}}
  table.insert(taken[by].numbers, ARGV[i + 5])
  counts[#counts + 1] = count
  i = final + 1
end
if #ended > 0 then
  call('SREM', P .. 'held:' .. holder, unpack(ended))
  call('ZADD', P .. 'rows', unpack(rows))
end
for _, from in pairs(taken) do settle(from.who, from.queue, from.numbers) end
put()
counts[#counts + 1] = last > 3 and take(4, last, t)
return counts
""")  # fmt: skip
