"""What our Redis transport does in the server: each of these is one step.

Keys, all below one prefix:

    m         id of all this (made anew after a loss), version of the routing, last number given,
              when somebody looked after the dead last, and since when that was never long ago
    x, b      exchanges with their kinds; bindings as `exchange NUL queue NUL key`
    qs, own   queues; those that go with their owner, by when he was last heard of
    q:QUEUE   what waits: numbers, with an `r` if redelivered, by (9 - priority, number)
    d:QUEUE   the messages that wait or are held, by number
    b:ID      the body of a message whose number is told as `number@ID`, or of one (`number&ID`)
              whose row keeps it, and goes with it; one that nothing refers to yet goes soon
    c         who consumes, by when he was last heard of (the server's clock, in milliseconds)
    h:WHO     what he holds: `queue number`, with its place in the queue and which take it was
    bell:QUEUE, n:WHO   lists to block on

And those of the ledger beside them, where the script that takes a request claims its row:

    r:ID          a row: epoch `e`, state `s`, holder `h`, result `d`, and `b` where its body is if
                  that is apart; which claim it was `k`, the life it was opened in `l`; `t`
                  milliseconds until it goes once it is DONE, if its
                  engine wants less than a week
    rows          ids, by when their rows were opened or ended (the server's clock, milliseconds)
    held:HOLDER   the ids of the rows that a holder has
    beats         holders, by when they were last heard of
    ledger        which ledger this is
    server        the server's `run_id` `run`, and the number of its life `life`; how often rows
                  were claimed or revoked `count`, and when that life began `boot`; until when
                  nothing is claimed `hold`, before which life OPEN rows are forgotten ones `from`
    users         who has it open, by when he was last heard of
    session:USER  the number of his session, and that of the last row which was made in one step
                  with publishing its request; `*`: the server may have lost which that was

A server that ends begins another *life*, perhaps with less than it had: what was OPEN when it was
written to its disk may have run since.  Each connection of a ledger begins with `ARRIVE`, so the
first one notices the new life before anybody claims anything in it.

A server without memory refuses the first write of a script that needs some, and no later one.  So
scripts that must work there begin with one that needs none, and `put` with one that does: it is
refused before anything is done.
"""

from __future__ import annotations

from typing import Final

from wbengine.transports._redis_link import Script

#: Seconds without a sign of life after which what a consumer held goes back.
DEAD_AFTER: Final = 10
#: Seconds after which the queue goes whose owner is not heard of.
OWNED_FOR: Final = 600
#: Seconds after which nobody is taken to be there any more by the last one who leaves.
GONE_AFTER: Final = 15
#: Seconds after which everything goes that nobody came for.
KEPT_FOR: Final = 7 * 24 * 3600

#: Seconds after which the body of a message goes that is apart from it.
BODY_KEPT_FOR: Final = 30 * 24 * 3600

_TIMES: Final = f"""
local TTL, OWNED, GONE = {KEPT_FOR * 1000}, {OWNED_FOR * 1000}, {GONE_AFTER * 1000}
local BODY_TTL = {BODY_KEPT_FOR * 1000}
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

#: Seconds after which nobody remembers a ledger, or who used it, that is not used.
LEDGER_KEPT_FOR: Final = 30 * 24 * 3600

#: Seconds in which a server that came back gives out nothing: whoever knows that it was set back
#: says so meanwhile, for all reach it again within two seconds.
HOLD: Final = 3

#: Who has the rows that a server which was set back shows as OPEN: some worker may.
FORGOTTEN: Final = "forgotten-by-redis"

#: Seconds after which a row goes that nobody came for.
ROW_KEPT_FOR: Final = 7 * 24 * 3600

#: ledger() -> its id, the life of its server, from which life on rows are not forgotten, until when
#: nothing is claimed, count of claims
#: is_gone_when_done(id, milliseconds that results are kept for its engine, and for its worker)
#: whole(result, ID of its body if that is apart) -> the result; '' if it is lost
LEDGER: Final = f"""
local FORGOTTEN, HOLD, LEDGER_TTL = '{FORGOTTEN}', {HOLD * 1000}, {LEDGER_KEPT_FOR * 1000}
local ROW_TTL = {ROW_KEPT_FOR * 1000}
""" + """
local known
local function ledger()
  if not known then
    known = call('HMGET', P .. 'server', 'life', 'from', 'hold', 'count')
    table.insert(known, 1, call('GET', P .. 'ledger'))
  end
  return known
end
local function is_forgotten(life)
  return tonumber(life or 0) < tonumber(ledger()[3] or 0)
end
local function is_gone_when_done(id, engines, workers)
  local ttl = math.min(tonumber(engines or ROW_TTL), tonumber(workers) or math.huge)
  if ttl < ROW_TTL then call('PEXPIRE', P .. 'r:' .. id, string.format('%.0f', ttl)) end
  return ttl == 0
end
local function whole(result, body)
  if not body then return result or '' end
  body = call('GET', P .. 'b:' .. body)
  return body and result .. body or ''
end
local function prolong(id)
  if call('PTTL', P .. 'r:' .. id) >= 0 then call('PEXPIRE', P .. 'r:' .. id, ROW_TTL) end
end
local function is_held(t)
  local left = tonumber(ledger()[4] or 0) - t
  return left > 0 and left <= HOLD
end
"""  # fmt: skip

#: make(id, epoch, life, milliseconds that results are kept or ''): a row, OPEN
MAKE: Final = """
local function make(id, epoch, life, kept)
  local r, ttl = P .. 'r:' .. id, tonumber(kept) or math.huge
  call('HSET', r, 'e', epoch, 's', 'open', 'l', life)
  if ttl < ROW_TTL then call('HSET', r, 't', kept) end
  if ttl < math.huge then
    call('PEXPIRE', r, string.format('%.0f', math.max(ttl, ROW_TTL)))
  end
end
"""

#: session(user) -> the number of his session, and that of the last row; None: there is none
#: begin_session(user, number, last row)
#:
#: What was sent in another session does nothing any more.
SESSION: Final = """
local function session(user)
  local number, last = string.match(call('GET', P .. 'session:' .. user) or '', '^(%d+) (%S+)$')
  return number, last
end
local function begin_session(user, number, last)
  call('SET', P .. 'session:' .. user, number .. ' ' .. last, 'PX', LEDGER_TTL)
end
"""

#: here(digest, user, milliseconds, whether that is seldom said) -> digest of the ledger: the one
#: given if the server lost it; count of claims
HERE: Final = """
local function here(digest, user, t, seldom)
  local id, count = ledger()[1], ledger()[5]
  if not id then
    call('SET', P .. 'ledger', digest)
    id = digest
  end
  -- What is said for each request is noted now and then.
  if seldom or t % 50 == 0 or not call('ZSCORE', P .. 'users', user) then
    call('ZADD', P .. 'users', t, user)
    for _, key in ipairs({'ledger', 'server', 'users', 'beats', 'rows', 'session:' .. user}) do
      call('PEXPIRE', P .. key, LEDGER_TTL)
    end
  end
  return {id, count or 0}
end
"""

#: (the server's `run_id` when it was heard last, and the count then) -> its `run_id`, the count,
#: the number of its life, and that of the last one that began with less than there was (0: none)
#:
#: Without an append-only file it may always have been; with one, if somebody heard of a claim that
#: it does not know of.
ARRIVE: Final = Script(HEAD + LEDGER + """
local function told(section, pattern)
  local info = redis.pcall('INFO', section)
  return type(info) == 'string' and string.match(info, pattern) or ''
end
local L, run, t = P .. 'server', told('server', 'run_id:(%w+)'), now()
local l = call('HMGET', L, 'run', 'life', 'boot', 'count', 'from')
local life, boot, count = tonumber(l[2] or 0), tonumber(l[3] or 0), tonumber(l[4] or 0)
local from = tonumber(l[5] or 0)
if run ~= '' and l[1] ~= run then
  life, boot = life + 1, count
  call('PEXPIRE', L, LEDGER_TTL)
  call('HSET', L, 'run', run, 'life', life, 'boot', boot)
  if l[1] then
    if told('persistence', 'aof_enabled:(%d)') == '1' then
      call('HSET', L, 'hold', t + HOLD)
    else
      from = life
    end
  end
  call('PEXPIRE', L, LEDGER_TTL)
end
if ARGV[1] ~= '' and ARGV[1] ~= run and tonumber(ARGV[2]) > boot then from = life end
if from ~= tonumber(l[5] or 0) then call('HSET', L, 'from', from) end
return {run, count, life, from}
""")  # fmt: skip

#: claim(id, epoch, holder, name of this claim) -> verdict, epoch, holder, result
#:
#: The holder is to be heard of (`beats`) at about that time.  Who got no answer claims again by the
#: same name, and is granted what he was granted.
CLAIM: Final = """
local function claim(id, epoch, holder, name)
  local r = P .. 'r:' .. id
  local row = call('HMGET', r, 'e', 's', 'h', 'd', 'k', 'l', 'b')
  if not row[1] then return {'MISSING', epoch, '', ''} end
  if row[1] ~= epoch then
    local verdict = tonumber(epoch) < tonumber(row[1]) and 'STALE' or 'MISSING'
    return {verdict, row[1], '', ''}
  end
  if row[2] == 'done' then return {'DONE', epoch, '', whole(row[4], row[7])} end
  if row[2] == 'claimed' then
    return {row[5] == name and 'GRANTED' or 'HELD', epoch, row[3], ''}
  end
  if is_forgotten(row[6]) then return {'HELD', epoch, FORGOTTEN, ''} end
  call('HSET', r, 's', 'claimed', 'h', holder, 'k', name)
  call('SADD', P .. 'held:' .. holder, id)
  return {'GRANTED', epoch, holder, ''}
end
"""

#: unclaim(id, holder, milliseconds): a CLAIMED row is OPEN again
UNCLAIM: Final = """
local function unclaim(id, holder, t)
  call('HSET', P .. 'r:' .. id, 's', 'open', 'h', '', 'k', '', 'l', ledger()[2] or 0)
  call('SREM', P .. 'held:' .. holder, id)
  prolong(id)
  call('ZADD', P .. 'rows', t, id)
end
"""

#: label(data) -> id, epoch and digest of the ledger of the row on which a message depends, if any
LABEL: Final = """
local function label(data)
  if string.byte(data) ~= 33 then return end
  -- Who knows the digest may have written anything.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
"""

#: keep(id, ID of a body) -> its mark: from now on it goes with that row; where that goes by itself
#: sooner than the queue of an engine that is silent, with that
_KEEP: Final = """
local function keep(id, body)
  local r, b = P .. 'r:' .. id, P .. 'b:' .. body
  call('HSET', r, 'b', body)
  local left = call('PTTL', r)
  if left < 0 then call('PERSIST', b) else call('PEXPIRE', b, math.max(left, OWNED)) end
  return '&' .. body
end
"""

#: forget(queue, numbers): their messages go, and bodies of theirs
#: clear(queue) -> how many messages waited, which go
_FORGET: Final = """
local function forget(queue, given)
  local numbers, bodies = {}, {}
  for i, number in ipairs(given) do
    local id
    numbers[i], id = string.match(number, '^(%d+)@?(%x*)')
    if id ~= '' then bodies[#bodies + 1] = P .. 'b:' .. id end
  end
  call('HDEL', P .. 'd:' .. queue, unpack(numbers))
  if #bodies > 0 then call('DEL', unpack(bodies)) end
end
local function clear(queue)
  local numbers = call('ZRANGE', P .. 'q:' .. queue, 0, -1)
  for _, number in ipairs(numbers) do forget(queue, {number}) end
  call('DEL', P .. 'q:' .. queue)
  return #numbers
end
"""

#: What was taken and seen by nobody is neither marked as delivered nor claimed any more.
_BACK: Final = (
    LEDGER
    + LABEL
    + UNCLAIM
    + _FORGET
    + """
local function put_back(who, field, seen, unheard, refused)
  local h = P .. 'h:' .. who
  local held = call('HGET', h, field)
  if not held then return 0 end
  call('HDEL', h, field)
  local place, take = string.match(held, '^(%S+) (%S+)$')
  local queue, number, again = string.match(field, '^(%S+) (%d[^r]*)(r?)$')
  seen = seen and not (unheard[take] or unheard[take .. ':' .. number .. again])
  local data = call('HGET', P .. 'd:' .. queue, string.match(number, '^%d+'))
  if refused or not data then forget(queue, {number}) end
  if data then
    if not refused then
      call('ZADD', P .. 'q:' .. queue, place, number .. (seen and 'r' or again))
      ring(queue)
    end
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
  local waited = clear(queue)
  call('DEL', P .. 'd:' .. queue, P .. 'bell:' .. queue)
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

#: (queue) -> how many wait
SIZE: Final = Script("return redis.call('ZCARD', KEYS[1] .. 'q:' .. ARGV[1])")

#: (queue) -> how many messages went
DROP_QUEUE: Final = Script(HEAD + _FORGET + _DROP + "return drop(ARGV[1])")

#: (queue) -> how many messages went
PURGE: Final = Script(HEAD + _FORGET + "return clear(ARGV[1])")

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
SETTLING: Final = (
    _FORGET
    + """
local function settle(who, queue, given)
  local h, fields, held, numbers = P .. 'h:' .. who, {}, {}, {}
  for i, number in ipairs(given) do fields[i] = queue .. ' ' .. number end
  for i, there in ipairs(call('HMGET', h, unpack(fields))) do
    if there then
      held[#held + 1] = fields[i]
      numbers[#numbers + 1] = given[i]
    end
  end
  if #held > 0 then
    call('HDEL', h, unpack(held))
    forget(queue, numbers)
  end
  return #held
end
"""
)

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
    LEDGER
    + CLAIM
    + """
local function take(first, last, t)
  local who, take, holder, digest = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  if not call('ZSCORE', C, who) then return false end
  if ARGV[first + 4] == '1' then
    call('ZADD', C, t, who)
    if holder ~= '' then call('ZADD', P .. 'beats', t, holder) end
  end
  local h, taken, group, i = P .. 'h:' .. who, {}, 0, first + 5
  local claims, granted, last_granted = holder ~= '' and ledger()[1] == digest, 0, nil
  if claims and is_held(t) then return {} end
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
            if claims then
              local id, epoch, of = label(data)
              if of == digest then
                said = claim(id, epoch, holder, who .. ':' .. take .. ':' .. number)
                if said[1] == 'GRANTED' then granted, last_granted = granted + 1, said end
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
  if granted > 0 then last_granted[5] = call('HINCRBY', P .. 'server', 'count', granted) end
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

#: (who, queue, number): he does not run it; what was claimed with it is not claimed any more
REFUSE: Final = Script(HEAD + _BACK + ALWAYS + """
put_back(ARGV[1], ARGV[2] .. ' ' .. ARGV[3], false, {}, true)
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

#: place(queue, priority, message, mark and ID of a body that is apart, or '') -> 1 if there is such
#: a queue; all goes in with put().  bodies[n]: ID of the body of the n-th message, if it is apart;
#: unless all of them are there, nothing is done.
_PUTTING: Final = """
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
"""

#: (version of the routing that chose the queues, bodies that are apart as `n:ID ...`, n from 0,
#: (priority, message, number of its queues, queue...)...)
#: -> in how many queues each is; or as `ROUTES`, when the version is another one; None: a body is
#: not there
PUT: Final = Script(HEAD + VERSION + _PUTTING + """
local counts, i = {}, 3
while i <= #ARGV do
  local last, count, body = i + 2 + ARGV[i + 2], 0, apart(#counts + 1)
  for k = i + 3, last do count = count + place(ARGV[k], ARGV[i], ARGV[i + 1], body) end
  counts[#counts + 1] = count
  i = last + 1
end
put()
return counts
""")  # fmt: skip

#: (version of the routing, bodies, user, number of his session, digest if there is none,
#: milliseconds that results are kept or '', life of the server,
#: (id, epoch, number of the row, life in which that was tried before or '', priority, request,
#: number of its queues, queue...)...)
#: -> in how many queues each request is, and as `HERE`; or -1, life and session, with nothing done,
#: where one of these is another; or as `PUT`
#:
#: Makes rows that nothing can be in the way of, and publishes their requests.  What was tried
#: before, and got no answer, is done if the server knows that it was not.
OPEN_AND_PUT: Final = Script(HEAD + VERSION + _PUTTING + LEDGER + MAKE + SESSION + HERE + """
local user, life, t = ARGV[3], tostring(ledger()[2] or 0), now()
local number, last = session(user)
if number ~= ARGV[4] or life ~= ARGV[7] then return {-1, life, number or ''} end
local counts, rows, newest, i = {}, {}, tonumber(last) or 0, 8
while i <= #ARGV do
  local id, row, before = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local final, count, body = i + 6 + ARGV[i + 6], 0, apart(#counts + 1)
  if before == '' or (last ~= '*' and row > tonumber(last)) then
    if call('EXISTS', P .. 'r:' .. id) == 0 then
      make(id, ARGV[i + 1], before == '' and life or before, ARGV[6])
      rows[#rows + 1] = t
      rows[#rows + 1] = id
    end
    for k = i + 7, final do count = count + place(ARGV[k], ARGV[i + 4], ARGV[i + 5], body) end
    newest = math.max(newest, row)
  else
    count = 1
  end
  counts[#counts + 1] = count
  i = final + 1
end
if #rows > 0 then call('ZADD', P .. 'rows', unpack(rows)) end
put()
begin_session(user, number, string.format('%.0f', newest))
counts[#counts + 1] = here(ARGV[5], user, t)
return counts
""")  # fmt: skip

#: (version of the routing, bodies, holder of claims, milliseconds that its results are kept, number
#: of arguments of a take, those, (id, epoch, who took the request, its queue and number, priority,
#: answer, number of its queues, queue...)...)
#: -> in how many queues each answer is, -1: the row is somebody else's, and what the take returned;
#: or as `PUT`
#:
#: Stores answers in rows, publishes them, acknowledges the requests, and takes others.  Whoever
#: removed a row has no use for the answer; if it was lost, its engine may wait for that.
END: Final = Script(HEAD + VERSION + _PUTTING + SETTLING + LABEL + TAKING + _KEEP + ALWAYS + """
local t, holder, last, counts = now(), ARGV[3], 5 + ARGV[5], {}
local i = last + 1
local ended, rows, gone, taken = {}, {}, {}, {}
while i <= #ARGV do
  local id, final, count, body = ARGV[i], i + 7 + ARGV[i + 7], 0, apart(#counts + 1)
  local r = P .. 'r:' .. id
  local there = call('HMGET', r, 'e', 's', 'h', 'l', 't')
  local same = there[1] == ARGV[i + 1]
  if same and (
    (there[2] == 'claimed' and there[3] == holder)
    or (there[2] == 'open' and is_forgotten(there[4]))
  ) then
    call('HSET', r, 's', 'done', 'd', ARGV[i + 6], 'h', '', 'k', '')
    ended[#ended + 1] = id
    rows[#rows + 1] = t
    rows[#rows + 1] = id
    if is_gone_when_done(id, there[5], ARGV[4]) then
      gone[#gone + 1] = id
    elseif body ~= '' then
      body = keep(id, bodies[#counts + 1])
    end
  elseif there[1] and not (same and there[2] == 'done') then
    count = -1
  end
  for k = i + 8, final do
    if count >= 0 then count = count + place(ARGV[k], ARGV[i + 5], ARGV[i + 6], body) end
  end
  local by = ARGV[i + 2] .. ' ' .. ARGV[i + 3]
  taken[by] = taken[by] or {who = ARGV[i + 2], queue = ARGV[i + 3], numbers = {}}
  table.insert(taken[by].numbers, ARGV[i + 4])
  counts[#counts + 1] = count
  i = final + 1
end
if #ended > 0 then
  call('SREM', P .. 'held:' .. holder, unpack(ended))
  call('ZADD', P .. 'rows', unpack(rows))
end
if #gone > 0 then call('ZREM', P .. 'rows', unpack(gone)) end
for _, from in pairs(taken) do settle(from.who, from.queue, from.numbers) end
put()
counts[#counts + 1] = last > 5 and take(6, last, t)
return counts
""")  # fmt: skip
