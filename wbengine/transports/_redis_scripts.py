"""Lua scripts of the Redis transport. Each runs atomically in the server.

Keys, all below one prefix:

    m         id of the data (new after a loss), version of the routing, last message number,
              time of the last `TEND`, and time since which `TEND` has run without a long pause
    x, b      exchanges with their kinds; bindings as `exchange NUL queue NUL key`
    qs, own   queues; owned queues with the time of the owner's last report
    q:QUEUE   waiting messages: numbers, with an `r` if redelivered, by (9 - priority, number)
    d:QUEUE   waiting and taken messages, by number
    b:ID      body that is stored out of line. The number of its message is `number@ID`, or
              `number&ID` if a row of the ledger owns the body, which is then deleted with the
              row. A body without a message expires soon
    c         consumers with the time of their last report (server clock, milliseconds)
    h:WHO     messages of a consumer: `queue number`, with the place in the queue and the take
    bell:QUEUE, n:WHO   lists for blocking waits

Keys of the ledger in the same database. The script that takes requests also claims its rows:

    r:ID          a row: epoch `e`, state `s`, holder `h`, result `d`, ID of the rest of the result
                  `b` if it is out of line, name of the claim `k`, incarnation in which the row was
                  opened `l`, milliseconds until a DONE row expires `t` if its engine wants less
                  than a week
    rows          ids, by the time at which their rows were opened or finished (server clock,
                  milliseconds)
    held:HOLDER   ids of the rows that a holder has claimed
    beats         holders with the time of their last heartbeat
    ledger        identifier of the ledger
    server        `run_id` of the server `run`, number of its incarnation `life`, number of claims
                  and revocations `count`, and its value at the start of the incarnation `boot`;
                  time until which claims are refused `hold`; rows that were OPEN before the
                  incarnation `from` are treated as lost
    users         processes that use the ledger, with the time of their last report
    session:USER  number of the session of a user, and of the last row that was created in one step
                  with publishing its request; `*`: the server may have lost this number

A restarted server begins a new incarnation, perhaps with less data: a request that was OPEN when
the data was saved may have run since. Each connection to a ledger begins with `ARRIVE`, which
detects a new incarnation before any claim.

A server without free memory refuses a script whose first write needs memory, but no later write.
Scripts that must always work therefore begin with a write that needs none. `put` begins with a
write that needs memory, so it is refused before it changes anything.
"""

from __future__ import annotations

from typing import Final

from wbengine.transports._redis_link import Script
from wbengine.transports.broker import MAX_BATCH_BYTES

#: Time after which a consumer without reports is dead and its messages are requeued.
DEAD_AFTER_SECONDS: Final = 10
#: Time without reports of its owner after which an owned queue is deleted.
OWNED_QUEUE_SECONDS: Final = 600
#: Time after which silent consumers no longer prevent that the last leaving one deletes all keys.
GONE_AFTER_SECONDS: Final = 15
#: Time after which unused keys expire.
UNUSED_KEY_SECONDS: Final = 7 * 24 * 3600

#: Time after which an out-of-line body expires.
BODY_SECONDS: Final = 30 * 24 * 3600

_TIMES: Final = f"""
local TTL, OWNED = {UNUSED_KEY_SECONDS * 1000}, {OWNED_QUEUE_SECONDS * 1000}
local GONE = {GONE_AFTER_SECONDS * 1000}
local BODY_TTL = {BODY_SECONDS * 1000}
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

#: Time after which an unused ledger and its users expire.
UNUSED_LEDGER_SECONDS: Final = 30 * 24 * 3600

#: Time in which a restarted server refuses claims. In this time all clients reconnect, and report
#: claims that the server lost.
CLAIM_REFUSAL_SECONDS: Final = 3

#: Holder of rows that are OPEN although a worker may have claimed them before a loss of data.
FORGOTTEN: Final = "forgotten-by-redis"

#: Time after which an unused row expires.
ROW_SECONDS: Final = 7 * 24 * 3600

#: ledger() -> its id, the incarnation of its server, the first incarnation with reliable rows,
#: time until which claims are refused, count of claims
#: is_gone_when_done(id, milliseconds to keep the result for its engine, and for its worker)
#: whole(result, ID of the rest if out of line) -> the result; '' if it is lost
LEDGER: Final = f"""
local FORGOTTEN, HOLD = '{FORGOTTEN}', {CLAIM_REFUSAL_SECONDS * 1000}
local LEDGER_TTL = {UNUSED_LEDGER_SECONDS * 1000}
local ROW_TTL = {ROW_SECONDS * 1000}
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

#: make(id, epoch, incarnation, milliseconds to keep the result or ''): create an OPEN row
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

#: session(user) -> number of the session, and of the last row; None: there is none
#: begin_session(user, number, last row)
#:
#: Steps of another session have no effect.
SESSION: Final = """
local function session(user)
  local number, last = string.match(call('GET', P .. 'session:' .. user) or '', '^(%d+) (%S+)$')
  return number, last
end
local function begin_session(user, number, last)
  call('SET', P .. 'session:' .. user, number .. ' ' .. last, 'PX', LEDGER_TTL)
end
"""

#: here(digest, user, milliseconds, whether calls are rare) -> digest of the ledger, count of
#: claims. If the server has no digest, the script stores the argument `digest`.
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

#: (last known `run_id` and count of the server) -> its `run_id`, the count, the number of its
#: incarnation, and of the last incarnation that began with lost data (0: none)
#:
#: Without an append-only file, each restart is treated as a loss of data. With one, a restart is a
#: loss only if the count is lower than a client has seen.
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

#: claim(id, epoch, holder, name of the claim) -> verdict, epoch, holder, result
#:
#: The caller must also write a heartbeat of the holder to `beats`. A client without a reply repeats
#: the claim under the same name and gets the same result.
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

#: unclaim(id, holder, milliseconds): change a CLAIMED row back to OPEN
UNCLAIM: Final = """
local function unclaim(id, holder, t)
  call('HSET', P .. 'r:' .. id, 's', 'open', 'h', '', 'k', '', 'l', ledger()[2] or 0)
  call('SREM', P .. 'held:' .. holder, id)
  prolong(id)
  call('ZADD', P .. 'rows', t, id)
end
"""

#: label(data) -> id, epoch and ledger digest of the row of a message, if it has a row
LABEL: Final = """
local function label(data)
  if string.byte(data) ~= 33 then return end
  -- Who knows the digest may have written anything.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
"""

#: keep(id, ID of a body) -> mark of the body, which from now on is deleted with the row. If the row
#: may expire before the queue of a silent engine, the body expires with that queue.
_KEEP: Final = """
local function keep(id, body)
  local r, b = P .. 'r:' .. id, P .. 'b:' .. body
  call('HSET', r, 'b', body)
  local left = call('PTTL', r)
  if left < 0 then call('PERSIST', b) else call('PEXPIRE', b, math.max(left, OWNED)) end
  return '&' .. body
end
"""

#: forget(queue, numbers): delete messages and their bodies
#: clear(queue) -> number of waiting messages, which are deleted
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

#: Requeued messages that were not delivered are neither marked as redelivered nor claimed.
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

#: (id for new data, exchange, kind) -> id of the data
EXCHANGE: Final = Script(HEAD + _MADE + ALWAYS + """
local id = made(ARGV[1])
if call('HSETNX', P .. 'x', ARGV[2], ARGV[3]) == 1 then call('HINCRBY', M, 'v', 1) end
call('PEXPIRE', P .. 'x', TTL)
return id
""")  # fmt: skip

#: (id for new data, queue, 1: owned) -> id of the data
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

#: (queue) -> number of waiting messages
SIZE: Final = Script("return redis.call('ZCARD', KEYS[1] .. 'q:' .. ARGV[1])")

DROP_QUEUE: Final = Script(HEAD + _FORGET + _DROP + "return drop(ARGV[1])")

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

#: settle(consumer, queue, numbers): acknowledge messages -> number of those that the consumer had
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

#: (consumer, id of the data with its first declaration, or '') -> 0: the id has changed, and the
#: consumer has not joined
JOIN: Final = Script(HEAD + ALWAYS + """
if ARGV[2] ~= '' and call('HGET', M, 'id') ~= ARGV[2] then return 0 end
call('ZADD', C, now(), ARGV[1])
call('PEXPIRE', C, TTL)
return 1
""")  # fmt: skip

#: take(first, last): the arguments from first to last are: consumer, number of the take, holder for
#: claims or '', digest of its ledger, 1: record a report and a heartbeat, and groups: (limit,
#: number of queues, queue...) -> None: the consumer is unknown; else messages: group, queue,
#: number, data, result of the claim fitting(queue, limit, bytes) -> number of the next messages
#: that fit into a batch with so many bytes, the bytes of the batch with them, whether the next
#: message does not fit
TAKING: Final = (
    LEDGER
    + CLAIM
    + f"local MAX_BATCH_BYTES = {MAX_BATCH_BYTES}"
    + """
local function fitting(queue, most, bytes)
  local count = 0
  for _, number in ipairs(call('ZRANGE', P .. 'q:' .. queue, 0, most - 1)) do
    local key, body = string.match(number, '^(%d+)[@&]?(%x*)')
    local size = call('HSTRLEN', P .. 'd:' .. queue, key)
    if body ~= '' then size = size + call('STRLEN', P .. 'b:' .. body) end
    if bytes > 0 and bytes + size > MAX_BATCH_BYTES then return count, bytes, true end
    count, bytes = count + 1, bytes + size
  end
  return count, bytes, false
end
local function take(first, last, t)
  local who, take, holder, digest = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  if not call('ZSCORE', C, who) then return false end
  if ARGV[first + 4] == '1' then
    call('ZADD', C, t, who)
    if holder ~= '' then call('ZADD', P .. 'beats', t, holder) end
  end
  local h, taken, group, i = P .. 'h:' .. who, {}, 0, first + 5
  local claims, granted, last_granted = holder ~= '' and ledger()[1] == digest, 0, nil
  local bytes, full = 0, false  -- of this batch
  if claims and is_held(t) then return {} end
  while i <= last do
    local room, final = tonumber(ARGV[i]), i + 1 + ARGV[i + 1]
    i = i + 2
    while i <= final do
      local queue = ARGV[i]
      local q, d = P .. 'q:' .. queue, P .. 'd:' .. queue
      local most, count = room, 0
      if most > 0 and not full then count, bytes, full = fitting(queue, most, bytes) end
      local popped = count > 0 and call('ZPOPMIN', q, count) or {}
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
      if (full or (count > 0 and count == most)) and call('ZCARD', q) > 0 then ring(queue) end
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

#: (arguments of `take`)
TAKE: Final = Script(HEAD + LABEL + TAKING + ALWAYS + "return take(1, #ARGV, now())")

#: (consumer, queue, number...): remove these messages -> how many of them the consumer had
SETTLE: Final = Script(HEAD + SETTLING + ALWAYS + """
return settle(ARGV[1], ARGV[2], {unpack(ARGV, 3)})
""")  # fmt: skip

#: (consumer, queue, number): acknowledge a request that is not run, and undo its claim
REFUSE: Final = Script(HEAD + _BACK + ALWAYS + """
put_back(ARGV[1], ARGV[2] .. ' ' .. ARGV[3], false, {}, true)
""")  # fmt: skip

#: (consumer, queue, number, 1: it was delivered) -> 1 if the consumer had it
REQUEUE: Final = Script(HEAD + _BACK + ALWAYS + """
return put_back(ARGV[1], ARGV[2] .. ' ' .. ARGV[3], ARGV[4] == '1', {})
""")  # fmt: skip

#: (queue): repeat a wake-up whose receiver could not take messages
NOTIFY: Final = Script(HEAD + ALWAYS + """
if call('ZCARD', P .. 'q:' .. ARGV[1]) > 0 then ring(ARGV[1]) end
""")  # fmt: skip

#: (consumer): end its blocking wait
POKE: Final = Script(HEAD + ALWAYS + """
call('RPUSH', P .. 'n:' .. ARGV[1], 1)
call('PEXPIRE', P .. 'n:' .. ARGV[1], 60000)
""")  # fmt: skip

#: (seconds after which a silent consumer is dead, calling consumer or '', number of its owned
#: queues, queue..., consumed queues...): prolong keys in use, requeue messages of dead consumers
#: -> number of dead consumers
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
-- After a gap longer than `dead` the server may have been down: consumers get time to report.
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

#: (consumer or '', numbers of takes without a reply and `TAKE:NUMBER` of undelivered messages):
#: remove a consumer. The last one deletes all keys, unless messages exist.
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

# Publishing is refused, without effect, if an outdated routing chose the queues.

#: place(queue, priority, message, mark and ID of an out-of-line body, or '') -> 1 if the queue
#: exists
#: put(): write all placed messages. bodies[n]: ID of the out-of-line body of message n. If one of
#: the bodies does not exist, nothing is done.
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

#: (version of the routing that selected the queues, out-of-line bodies as `n:ID ...`, n from 0,
#: (priority, message, number of its queues, queue...)...)
#: -> number of queues for each message; or the result of `ROUTES` if the version differs; None: a
#: body does not exist
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

#: (version of the routing, bodies, user, number of its session, digest if there is none,
#: milliseconds to keep results or '', incarnation of the server, (id, epoch, number of the row,
#: incarnation of an earlier attempt or '', priority, request, number of its queues, queue...)...)
#: -> number of queues for each request, and the result of `HERE`; or -1, incarnation and session,
#: if one of these differs, and nothing is done; or the result of `PUT`  Creates rows that cannot
#: conflict, and publishes their requests. An attempt without a reply is repeated only if the server
#: can determine that it was not executed.
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

#: (version of the routing, bodies, holder for claims, milliseconds to keep results, number of
#: arguments of a take, these arguments, (id, epoch, consumer of the request, its queue and number,
#: priority, reply, number of its queues, queue...)...)
#: -> number of queues for each reply, -1: another process owns the row; and the result of the take;
#: or the result of `PUT`
#:
#: Stores results in rows, publishes replies, acknowledges requests, and takes other requests. A
#: reply without a row is published too: if its engine deleted the row, it ignores the reply; if the
#: row was lost, the engine may wait for the reply.
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
