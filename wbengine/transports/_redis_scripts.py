"""What our Redis transport does in the server: each of these is one step.

Keys, all below one prefix:

    m         id of all this (made anew after a loss), version of the routing, last number given,
              when somebody looked after the dead last, and since when that was never long ago
    x, b      exchanges with their kinds; bindings as `exchange NUL queue NUL key`
    qs, own   queues; those that go with their owner, by when he was last heard of
    q:QUEUE   what waits: numbers, with an `r` if redelivered, by (9 - priority, number)
    d:QUEUE   the messages that wait or are held, by number
    c         who consumes, by when he was last heard of (the server's clock, in milliseconds)
    h:WHO     what he holds: `queue number`, with its place in the queue and which take it was
    bell:QUEUE, n:WHO   lists to block on

A server without memory refuses the first write of a script that needs some, and no later one.  So
scripts that must work there begin with one that needs none, and `put` with one that does: it is
refused before anything is done.
"""

from __future__ import annotations

from typing import Final

from wbengine.transports import _claim_scripts
from wbengine.transports._redis_link import Script

#: Seconds without a sign of life after which what a consumer held goes back.
DEAD_AFTER: Final = 10
#: Seconds after which the queue goes whose owner is not heard of.
OWNED_FOR: Final = 600
#: Seconds after which nobody is taken to be there any more by the last one who leaves.
GONE_AFTER: Final = 15
#: Seconds after which everything goes that nobody came for.
KEPT_FOR: Final = 7 * 24 * 3600

_TIMES: Final = f"""
local TTL, OWNED, GONE = {KEPT_FOR * 1000}, {OWNED_FOR * 1000}, {GONE_AFTER * 1000}
"""
HEAD: Final = (
    _TIMES
    + """
local P = KEYS[1]
local call = redis.call
local M, C = P .. 'm', P .. 'c'
local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function ring(queue)
  local bell = P .. 'bell:' .. queue
  if call('EXISTS', bell) == 1 then return false end
  call('RPUSH', bell, 1)
  call('PEXPIRE', bell, TTL)
  return true
end
"""
)

#: A first write that needs no memory.
ALWAYS: Final = "call('PEXPIRE', M, TTL)\n"

#: label(data) -> id, epoch and digest of the ledger of the row on which a message depends, if any
LABEL: Final = """
local function label(data)
  if string.byte(data) ~= 33 then return end
  -- Who knows the digest may have written anything.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
"""

#: What was taken and seen by nobody is neither marked as delivered nor claimed any more.
_BACK: Final = (
    LABEL
    + _claim_scripts.UNCLAIM
    + """
local function put_back(who, field, seen, unheard)
  local h = P .. 'h:' .. who
  local held = call('HGET', h, field)
  if not held then return 0 end
  call('HDEL', h, field)
  local place, take = string.match(held, '^(%S+) (%S+)$')
  local queue, number, again = string.match(field, '^(%S+) (%d+)(r?)$')
  seen = seen and not (unheard[take] or unheard[take .. ':' .. number .. again])
  local data = call('HGET', P .. 'd:' .. queue, number)
  if data then
    call('ZADD', P .. 'q:' .. queue, place, number .. (seen and 'r' or again))
    ring(queue)
    local id = not seen and label(data)
    if id then
      local name = who .. ':' .. take .. ':' .. number .. again
      local row = call('HMGET', P .. 'r:' .. id, 'k', 'h')
      if row[1] == name then unclaim(id, row[2], now()) end
    end
  end
  return 1
end
local function bury(who, unheard)
  for _, field in ipairs(call('HKEYS', P .. 'h:' .. who)) do
    put_back(who, field, true, unheard)
  end
  call('ZREM', C, who)
  call('DEL', P .. 'n:' .. who)
end
"""
)

_DROP: Final = """
local function drop(queue)
  local waited = call('ZCARD', P .. 'q:' .. queue)
  call('DEL', P .. 'q:' .. queue, P .. 'd:' .. queue, P .. 'bell:' .. queue)
  call('SREM', P .. 'qs', queue)
  call('ZREM', P .. 'own', queue)
  for _, binding in ipairs(call('HKEYS', P .. 'b')) do
    if string.match(binding, '^[^%z]*%z([^%z]*)%z') == queue then
      call('HDEL', P .. 'b', binding)
      call('HINCRBY', M, 'v', 1)
    end
  end
  return waited
end
"""

_MADE: Final = """
local function made(fresh)
  if call('HSETNX', M, 'id', fresh) == 1 then
    call('HSET', M, 'v', 0)
    call('PEXPIRE', M, TTL)
  end
  return call('HGET', M, 'id')
end
"""

#: (id for all this if it is new, exchange, kind) -> id of all this
EXCHANGE: Final = Script(HEAD + _MADE + ALWAYS + """
local id = made(ARGV[1])
if call('HSETNX', P .. 'x', ARGV[2], ARGV[3]) == 1 then call('HINCRBY', M, 'v', 1) end
call('PEXPIRE', P .. 'x', TTL)
return id
""")  # fmt: skip

#: (exchange) -> kind or None
KIND: Final = Script("return redis.call('HGET', KEYS[1] .. 'x', ARGV[1])")

#: (exchange)
DROP_EXCHANGE: Final = Script(HEAD + """
if call('HDEL', P .. 'x', ARGV[1]) == 1 then
  call('HINCRBY', M, 'v', 1)
  for _, binding in ipairs(call('HKEYS', P .. 'b')) do
    if string.match(binding, '^[^%z]*') == ARGV[1] then call('HDEL', P .. 'b', binding) end
  end
end
""")  # fmt: skip

#: (id for all this if it is new, queue, 1: it goes with its owner) -> id of all this
QUEUE: Final = Script(HEAD + _MADE + ALWAYS + """
local id = made(ARGV[1])
call('SADD', P .. 'qs', ARGV[2])
call('PEXPIRE', P .. 'qs', TTL)
if ARGV[3] == '1' then
  call('ZADD', P .. 'own', now(), ARGV[2])
  call('PEXPIRE', P .. 'own', TTL)
end
return id
""")  # fmt: skip

#: (queue) -> 1 if there is such a queue
HAS: Final = Script("return redis.call('SISMEMBER', KEYS[1] .. 'qs', ARGV[1])")

#: (queue) -> how many wait
SIZE: Final = Script("return redis.call('ZCARD', KEYS[1] .. 'q:' .. ARGV[1])")

#: (queue) -> how many messages went
DROP_QUEUE: Final = Script(HEAD + _DROP + "return drop(ARGV[1])")

#: (queue) -> how many messages went
PURGE: Final = Script(HEAD + """
local numbers = call('ZRANGE', P .. 'q:' .. ARGV[1], 0, -1)
for _, number in ipairs(numbers) do
  call('HDEL', P .. 'd:' .. ARGV[1], string.match(number, '^%d+'))
end
call('DEL', P .. 'q:' .. ARGV[1])
return #numbers
""")  # fmt: skip

#: (binding)
BIND: Final = Script(HEAD + ALWAYS + """
if call('HSET', P .. 'b', ARGV[1], 1) == 1 then call('HINCRBY', M, 'v', 1) end
call('PEXPIRE', P .. 'b', TTL)
""")  # fmt: skip

#: (binding)
UNBIND: Final = Script(HEAD + ALWAYS + """
if call('HDEL', P .. 'b', ARGV[1]) == 1 then call('HINCRBY', M, 'v', 1) end
""")  # fmt: skip

VERSION: Final = """
local m = call('HMGET', M, 'id', 'v')
local version = (m[1] or '') .. ':' .. (m[2] or '')
"""

#: () -> version of the routing, exchanges and their kinds, bindings
ROUTES: Final = Script(HEAD + VERSION + """
return {version, call('HGETALL', P .. 'x'), call('HKEYS', P .. 'b')}
""")  # fmt: skip

#: settle(who, queue, numbers) -> how many of them he held, who has them no more
SETTLING: Final = """
local function settle(who, queue, given)
  local h, fields, held, numbers = P .. 'h:' .. who, {}, {}, {}
  for i, number in ipairs(given) do fields[i] = queue .. ' ' .. number end
  for i, there in ipairs(call('HMGET', h, unpack(fields))) do
    if there then
      held[#held + 1] = fields[i]
      numbers[#numbers + 1] = string.match(given[i], '^%d+')
    end
  end
  if #held > 0 then
    call('HDEL', h, unpack(held))
    call('HDEL', P .. 'd:' .. queue, unpack(numbers))
  end
  return #held
end
"""

#: (who, id of all this where he declared anything, or '') -> 0: another one, he has not joined
JOIN: Final = Script(HEAD + ALWAYS + """
if ARGV[2] ~= '' and call('HGET', M, 'id') ~= ARGV[2] then return 0 end
call('ZADD', C, now(), ARGV[1])
call('PEXPIRE', C, TTL)
return 1
""")  # fmt: skip

#: take(first, last): the arguments in between are who, number of this take, holder of claims or '',
#: digest of their ledger, 1: note that both are there, groups: (most, number of queues, queue...)
#: -> None: he is not known (any more); else messages: group, queue, number, data, what a claim said
TAKING: Final = (
    _claim_scripts.CLAIM
    + """
local function take(first, last, t)
  local who, take, holder, digest = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  if not call('ZSCORE', C, who) then return false end
  if ARGV[first + 4] == '1' then
    call('ZADD', C, t, who)
    if holder ~= '' then call('ZADD', P .. 'beats', t, holder) end
  end
  local h, taken, group, i = P .. 'h:' .. who, {}, 0, first + 5
  local ledger = holder ~= '' and call('GET', P .. 'ledger') == digest
  while i <= last do
    local room, final = tonumber(ARGV[i]), i + 1 + ARGV[i + 1]
    i = i + 2
    while i <= final do
      local queue = ARGV[i]
      local q, d = P .. 'q:' .. queue, P .. 'd:' .. queue
      local most = room
      local popped = most > 0 and call('ZPOPMIN', q, most) or {}
      if #popped > 0 then
        local numbers, held = {}, {}
        for k = 1, #popped, 2 do numbers[#numbers + 1] = string.match(popped[k], '^%d+') end
        for k, data in ipairs(call('HMGET', d, unpack(numbers))) do
          local number, place = popped[2 * k - 1], popped[2 * k]
          if data then
            held[#held + 1] = queue .. ' ' .. number
            held[#held + 1] = place .. ' ' .. take
            local said = false
            if ledger then
              local id, epoch, of = label(data)
              if of == digest then
                said = claim(id, epoch, holder, who .. ':' .. take .. ':' .. number)
              end
            end
            taken[#taken + 1] = {group, queue, number, data, said}
            room = room - 1
          end
        end
        if #held > 0 then call('HSET', h, unpack(held)) end
      end
      -- Who took leaves the bell to the next one: it rings once for any number of messages.
      if #popped > 0 and #popped == 2 * most and call('ZCARD', q) > 0 then ring(queue) end
      i = i + 1
    end
    group = group + 1
  end
  if #taken > 0 then call('PEXPIRE', h, TTL) end
  return taken
end
"""
)

#: (as `take`)
TAKE: Final = Script(HEAD + LABEL + TAKING + ALWAYS + "return take(1, #ARGV, now())")

#: (who, queue, number...) -> how many of them he held
SETTLE: Final = Script(HEAD + SETTLING + ALWAYS + """
return settle(ARGV[1], ARGV[2], {unpack(ARGV, 3)})
""")  # fmt: skip

#: (who, queue, number, 1: it was delivered) -> 1 if he held it
GIVE_BACK: Final = Script(HEAD + _BACK + ALWAYS + """
return put_back(ARGV[1], ARGV[2] .. ' ' .. ARGV[3], ARGV[4] == '1', {})
""")  # fmt: skip

#: (queue): the bell was heard by one who cannot take
RING: Final = Script(HEAD + ALWAYS + """
if call('ZCARD', P .. 'q:' .. ARGV[1]) > 0 then ring(ARGV[1]) end
""")  # fmt: skip

#: (who): make him look up who is blocked on his own list
POKE: Final = Script(HEAD + ALWAYS + """
call('RPUSH', P .. 'n:' .. ARGV[1], 1)
call('PEXPIRE', P .. 'n:' .. ARGV[1], 60000)
""")  # fmt: skip

#: (seconds until somebody silent is dead, who asks or '', number of queues that go with him,
#: queue..., queues that are consumed...): refresh what is in use, and see after what dead ones left
#: -> how many dead consumers were found
TEND: Final = Script(HEAD + _BACK + _DROP + ALWAYS + """
local t, dead = now(), ARGV[1] * 1000
for _, key in ipairs({'m', 'x', 'b', 'qs', 'own', 'c'}) do call('PEXPIRE', P .. key, TTL) end
-- Who has no room for a long time takes nothing.
if ARGV[2] ~= '' then call('ZADD', C, 'XX', t, ARGV[2]) end
for i = 4, #ARGV do
  local queue = ARGV[i]
  if i <= ARGV[3] + 3 and call('ZSCORE', P .. 'own', queue) then
    call('ZADD', P .. 'own', t, queue)
  end
  call('PEXPIRE', P .. 'q:' .. queue, TTL)
  call('PEXPIRE', P .. 'd:' .. queue, TTL)
end
-- Where nobody was for so long, the server may have been away: who lives has time to show it.
local last = tonumber(call('HGET', M, 't') or 0)
if t - last > dead then call('HSET', M, 'since', t) end
call('HSET', M, 't', t)
local seen = t - call('HGET', M, 'since')
local found = {}
if seen >= dead then
  found = call('ZRANGEBYSCORE', C, '-inf', t - dead, 'LIMIT', 0, 50)
  for _, who in ipairs(found) do bury(who, {}) end
end
if seen >= OWNED then
  local left = call('ZRANGEBYSCORE', P .. 'own', '-inf', t - OWNED, 'LIMIT', 0, 50)
  for _, queue in ipairs(left) do drop(queue) end
end
return #found
""")  # fmt: skip

#: (who or '', numbers of takes whose answers he did not hear, and `TAKE:NUMBER` of messages that he
#: did not look at): he goes; the last one removes everything, unless messages wait
LEAVE: Final = Script(HEAD + _BACK + _DROP + ALWAYS + """
local t, unheard = now(), {}
for what in string.gmatch(ARGV[2], '%S+') do unheard[what] = true end
if ARGV[1] ~= '' then bury(ARGV[1], unheard) end
if call('ZCOUNT', C, '(' .. t - GONE, '+inf') > 0 then return 0 end
for _, who in ipairs(call('ZRANGE', C, 0, -1)) do bury(who, {}) end
for _, queue in ipairs(call('ZRANGEBYSCORE', P .. 'own', '-inf', t - GONE)) do drop(queue) end
local queues = call('SMEMBERS', P .. 'qs')
for _, queue in ipairs(queues) do
  if call('EXISTS', P .. 'd:' .. queue) == 1 then return 0 end
end
for _, queue in ipairs(queues) do call('DEL', P .. 'bell:' .. queue) end
call('DEL', P .. 'm', P .. 'x', P .. 'b', P .. 'qs', P .. 'own', P .. 'c')
return 1
""")  # fmt: skip

# Publishing: refused, with nothing done, where the routing that chose the queues is not that of the
# server any more.

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
