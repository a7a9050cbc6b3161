"""Scripts of the Redis ledger; each is one atomic step in the server.

`transports._redis_scripts` describes the keys. A server without free memory refuses a script whose
first write needs memory, but no later write: opening a row fails, completing one does not.
"""

from __future__ import annotations

from typing import Final

from wbengine.transports import _redis_scripts
from wbengine.transports._redis_link import Script

#: Functions:
#: row(id) -> epoch, state, holder, result, id of its body, milliseconds to keep its result
#: is_held_by(holder, fields, epoch): also true for any holder if the server lost the real one
_HEAD: Final = """
local P = KEYS[1]
local call = redis.call
local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
""" + _redis_scripts.LEDGER + """
local function row(id)
  local there = call('HMGET', P .. 'r:' .. id, 'e', 's', 'h', 'd', 'b', 't', 'l')
  local life = table.remove(there)
  if there[3] == '' then there[3] = false end
  if there[2] == 'open' and is_forgotten(life) then there[2], there[3] = 'claimed', FORGOTTEN end
  return there
end
local function is_held_by(holder, there, epoch)
  return there[1] == epoch and there[2] == 'claimed'
    and (there[3] == holder or there[3] == FORGOTTEN)
end
local function remove(id, holder, body)
  call('DEL', P .. 'r:' .. id)
  if body then call('DEL', P .. 'b:' .. body) end
  call('ZREM', P .. 'rows', id)
  if holder then call('SREM', P .. 'held:' .. holder, id) end
end
"""  # fmt: skip

#: Begins with (user, its session); returns None without a change if that session is over.
_IN_SESSION: Final = (
    _redis_scripts.SESSION
    + """
if session(ARGV[1]) ~= ARGV[2] then return false end
"""
)

#: (digest to use if there is none, user) -> digest, count of claims
BEGIN: Final = Script(_HEAD + _redis_scripts.HERE + "return here(ARGV[1], ARGV[2], now(), true)")

#: (user, number, (id, epoch, holder, name of a claim)...): begins session `number`. Late commands
#: of earlier sessions have no effect; rows of these claims, which got no reply, become OPEN.
RECONCILE: Final = Script(_HEAD + _redis_scripts.UNCLAIM + _redis_scripts.SESSION + """
call('PEXPIRE', P .. 'rows', LEDGER_TTL)
local number, last = session(ARGV[1])
if not number or tonumber(number) < tonumber(ARGV[2]) then
  begin_session(ARGV[1], ARGV[2], last or (ARGV[2] == '0' and '0' or '*'))
end
for i = 3, #ARGV, 4 do
  local there = call('HMGET', P .. 'r:' .. ARGV[i], 'e', 's', 'h', 'k')
  if there[1] == ARGV[i + 1] and there[2] == 'claimed' and there[4] == ARGV[i + 3] then
    unclaim(ARGV[i], ARGV[i + 2], now())
  end
end
""")  # fmt: skip

#: (user, its session, digest, 1: also replace OPEN rows with lower epochs, milliseconds to keep
#: results or '', (id, epoch)...) -> digest, count of claims; None: the session is over
OPEN: Final = Script(_HEAD + _redis_scripts.MAKE + _redis_scripts.HERE + _IN_SESSION + """
local t, new = now(), {}
for i = 6, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  local there = row(id)
  if not there[1]
    or (ARGV[4] == '1' and there[2] == 'open' and tonumber(there[1]) < tonumber(epoch))
  then
    make(id, epoch, ledger()[2] or 0, ARGV[5])
    new[#new + 1] = t
    new[#new + 1] = id
  end
end
if #new > 0 then call('ZADD', P .. 'rows', unpack(new)) end
return here(ARGV[3], ARGV[1], t)
""")  # fmt: skip

#: (user, its session, id, epoch, holder, name of this claim)
#: -> verdict, epoch, holder, result, count of claims; None: the session is over
CLAIM: Final = Script(_HEAD + _redis_scripts.CLAIM + _IN_SESSION + """
local t = now()
if is_held(t) then
  return redis.error_reply('WAIT it has just started, and finds out whether it was set back')
end
call('PEXPIRE', P .. 'rows', LEDGER_TTL)
local said = claim(ARGV[3], ARGV[4], ARGV[5], ARGV[6])
if said[1] == 'GRANTED' then
  call('ZADD', P .. 'beats', t, ARGV[5])
  said[5] = call('HINCRBY', P .. 'server', 'count', 1)
end
return said
""")  # fmt: skip

#: (digest, user, holder) -> digest, count of claims
RENEW: Final = Script(_HEAD + _redis_scripts.HERE + """
call('PEXPIRE', P .. 'rows', LEDGER_TTL)
local t, held = now(), P .. 'held:' .. ARGV[3]
call('ZADD', P .. 'beats', t, ARGV[3])
-- What runs for days is still there when it ends.
local one = call('SRANDMEMBER', held)
local left = one and call('PTTL', P .. 'r:' .. one) or -1
if left >= 0 and left < ROW_TTL / 2 then
  for _, id in ipairs(call('SMEMBERS', held)) do prolong(id) end
end
return here(ARGV[1], ARGV[2], t, true)
""")  # fmt: skip

#: (holder) -> milliseconds or None
SILENCE: Final = Script(_HEAD + """
local beat = call('ZSCORE', P .. 'beats', ARGV[1])
return beat and now() - beat
""")  # fmt: skip

#: (holder, milliseconds to keep results, (id, epoch, result)...) -> for each 1 if it was held
FINISH: Final = Script(_HEAD + """
local t, holder, done, his, ended, seen = now(), ARGV[1], {}, {}, {}, {}
for i = 3, #ARGV, 3 do
  local id, there = ARGV[i], row(ARGV[i])
  local held = is_held_by(holder, there, ARGV[i + 1]) and not seen[id]
  done[#done + 1] = held and 1 or 0
  if held then
    seen[id] = there
    his[#his + 1] = id
    ended[#ended + 1] = t
    ended[#ended + 1] = id
  end
end
if #his == 0 then return done end
call('SREM', P .. 'held:' .. holder, unpack(his))
local gone = {}
for i = 3, #ARGV, 3 do
  if done[i / 3] == 1 then
    local id = ARGV[i]
    call('HSET', P .. 'r:' .. id, 's', 'done', 'd', ARGV[i + 2], 'h', '', 'k', '')
    if is_gone_when_done(id, seen[id][6], ARGV[2]) then gone[#gone + 1] = id end
  end
end
call('ZADD', P .. 'rows', unpack(ended))
if #gone > 0 then call('ZREM', P .. 'rows', unpack(gone)) end
return done
""")  # fmt: skip

#: (user, its session, id, epoch, holder) -> 1 if it was held; None: the session is over
RELEASE: Final = Script(_HEAD + _redis_scripts.UNCLAIM + _IN_SESSION + """
local id, there = ARGV[3], row(ARGV[3])
if not is_held_by(ARGV[5], there, ARGV[4]) then return 0 end
call('PEXPIRE', P .. 'rows', LEDGER_TTL)
unclaim(id, ARGV[5], now())
return 1
""")  # fmt: skip

#: (id, epoch) -> None: no row; the result if it is done; else 1, and a row at a lower epoch is OPEN
#: again
REOPEN: Final = Script(_HEAD + """
local id, there = ARGV[1], row(ARGV[1])
if not there[1] then return false end
if there[2] == 'done' then return {whole(there[4], there[5])} end
if tonumber(there[1]) < tonumber(ARGV[2]) then
  call('PEXPIRE', P .. 'rows', LEDGER_TTL)
  call('HSET', P .. 'r:' .. id, 'e', ARGV[2], 's', 'open', 'h', '', 'k', '', 'l', ledger()[2] or 0)
  prolong(id)
  if there[3] then call('SREM', P .. 'held:' .. there[3], id) end
  call('ZADD', P .. 'rows', now(), id)
end
return 1
""")  # fmt: skip

#: ((id, epoch or '')...) -> for each 1 if it was removed; count of claims, if any was removed
REVOKE: Final = Script(_HEAD + """
local done, revoked = {}, 0
for i = 1, #ARGV, 2 do
  local there, epoch = row(ARGV[i]), ARGV[i + 1]
  local theirs = epoch ~= '' and there[1] and tonumber(there[1]) > tonumber(epoch)
  local mine = there[2] == 'open' and not theirs
  if mine then
    remove(ARGV[i], false)
    revoked = revoked + 1
  end
  done[#done + 1] = mine and 1 or 0
end
return {done, revoked > 0 and call('HINCRBY', P .. 'server', 'count', revoked)}
""")  # fmt: skip

#: (id...)
DROP: Final = Script(_HEAD + """
local rows, bodies = {}, {}
for i, id in ipairs(ARGV) do
  rows[i] = P .. 'r:' .. id
  local there = call('HMGET', rows[i], 'h', 'b')
  if there[1] and there[1] ~= '' then call('SREM', P .. 'held:' .. there[1], id) end
  if there[2] then bodies[#bodies + 1] = P .. 'b:' .. there[2] end
end
if #bodies > 0 then call('DEL', unpack(bodies)) end
call('DEL', unpack(rows))
call('ZREM', P .. 'rows', unpack(ARGV))
""")  # fmt: skip

#: (id...) -> for each epoch, state, holder, result
STATE: Final = Script(_HEAD + """
local rows = {}
for i, id in ipairs(ARGV) do
  local there = row(id)
  rows[i] = {there[1], there[2], there[3], there[5] and whole(there[4], there[5]) or there[4]}
end
return rows
""")  # fmt: skip

#: A page of rows, in the order of time and id, after a position:
#: (time of the position in milliseconds or -inf, its id, maximum number of rows)
#: -> the current time, (milliseconds, id, epoch, state, holder or None)...
PAGE: Final = Script(_HEAD + """
local since, last, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found, skip = {now()}, 0
local function later(id)  -- as a sorted set sees it, whatever the locale
  for k = 1, #id do
    local mine, other = string.byte(id, k), string.byte(last, k)
    if mine ~= other then return not other or mine > other end
  end
  return false
end
while #found <= most do
  local some = call('ZRANGEBYSCORE', P .. 'rows', since, '+inf', 'WITHSCORES', 'LIMIT', skip, 500)
  for i = 1, #some, 2 do
    local id, at = some[i], some[i + 1]
    if #found <= most and (at ~= since or later(id)) then
      local there = row(id)
      if there[1] then found[#found + 1] = {at, id, there[1], there[2], there[3]} end
    end
  end
  if #some < 1000 then break end
  skip = skip + 500
end
return found
""")  # fmt: skip

#: () -> ids
IDS: Final = Script("return redis.call('ZRANGE', KEYS[1] .. 'rows', 0, -1)")

#: (milliseconds) -> 1 if a sweep is due, which reserves it for the caller
DUE: Final = Script("""
return redis.call('SET', KEYS[1] .. 'swept', 1, 'NX', 'PX', ARGV[1]) and 1 or 0
""")

#: (milliseconds, number of the first row to read, 1: only rows that are DONE)
#: -> number of removed rows, number of other rows that were read, whether there may be more
SWEEP: Final = Script(_HEAD + """
local t = now()
local before = t - ARGV[1]
local ids = call('ZRANGEBYSCORE', P .. 'rows', '-inf', before, 'LIMIT', ARGV[2], 500)
local removed, kept = 0, 0
for _, id in ipairs(ids) do
  local there = row(id)
  local beat = there[3] and call('ZSCORE', P .. 'beats', there[3])
  if (beat and tonumber(beat) > before) or (ARGV[3] == '1' and there[2] ~= 'done') then
    kept = kept + 1
  else
    remove(id, there[3], there[5])
    removed = removed + 1
  end
end
return {removed, kept, #ids == 500 and 1 or 0}
""")  # fmt: skip

#: (milliseconds): remove holders that have no rows and whose last heartbeat is older than this
SWEEP_HOLDERS: Final = Script(_HEAD + """
for _, holder in ipairs(call('ZRANGEBYSCORE', P .. 'beats', '-inf', now() - ARGV[1])) do
  if call('EXISTS', P .. 'held:' .. holder) == 0 then call('ZREM', P .. 'beats', holder) end
end
""")  # fmt: skip

#: Suffix of a user that also consumes messages here. Its heartbeats are those of its consumer.
CONSUMER: Final = ".c"

#: (user, holder...): close the ledger. The last user removes everything, unless there are rows.
END: Final = Script(_HEAD + """
local gone = now() - 15000
if call('ZCOUNT', P .. 'c', gone, '+inf') == 0 then
  for _, user in ipairs(call('ZRANGEBYSCORE', P .. 'users', '-inf', gone)) do
    if string.sub(user, -2) == '.c' then
      call('ZREM', P .. 'users', user)
      call('DEL', P .. 'session:' .. user)
    end
  end
end
for i = 2, #ARGV do
  if call('EXISTS', P .. 'held:' .. ARGV[i]) == 0 then call('ZREM', P .. 'beats', ARGV[i]) end
end
call('ZREM', P .. 'users', ARGV[1])
call('DEL', P .. 'session:' .. ARGV[1])
if call('EXISTS', P .. 'users', P .. 'rows') == 0 then
  call('DEL', P .. 'ledger', P .. 'server', P .. 'beats', P .. 'swept')
end
""")  # fmt: skip
