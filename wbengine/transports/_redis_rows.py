"""Rows of a ledger that is kept in Redis, as Lua: what the ledger and the taking of messages share.

Keys, all below one prefix:

    r:ID          a row: epoch `e`, state `s`, holder `h`, result `d`, which claim it was `k`
    rows          ids, by when their rows were opened or ended (the server's clock, milliseconds)
    held:HOLDER   the ids of the rows that a holder has
    beats         holders, by when they were last heard of
    ledger        which ledger this is
    users         who has it open, by when he was last heard of
"""

from __future__ import annotations

from typing import Final

#: claim(id, epoch, holder, name of this claim, milliseconds) -> verdict, epoch, holder, result
#:
#: Who got no answer claims again by the same name, and is granted what he was granted.
CLAIM: Final = """
local beats = 0
local function claim(id, epoch, holder, name, t)
  local r = KEYS[1] .. 'r:' .. id
  local row = redis.call('HMGET', r, 'e', 's', 'h', 'd', 'k')
  if not row[1] then return {'MISSING', epoch, '', ''} end
  if row[1] ~= epoch then
    local verdict = tonumber(epoch) < tonumber(row[1]) and 'STALE' or 'MISSING'
    return {verdict, row[1], '', ''}
  end
  if row[2] == 'done' then return {'DONE', epoch, '', row[4] or ''} end
  if row[2] == 'claimed' then
    return {row[5] == name and 'GRANTED' or 'HELD', epoch, row[3], ''}
  end
  redis.call('HSET', r, 's', 'claimed', 'h', holder, 'k', name)
  redis.call('SADD', KEYS[1] .. 'held:' .. holder, id)
  if beats ~= t then
    redis.call('ZADD', KEYS[1] .. 'beats', t, holder)
    beats = t
  end
  return {'GRANTED', epoch, holder, ''}
end
"""

#: unclaim(id, holder, milliseconds): a CLAIMED row is OPEN again
UNCLAIM: Final = """
local function unclaim(id, holder, t)
  redis.call('HSET', KEYS[1] .. 'r:' .. id, 's', 'open', 'h', '', 'k', '')
  redis.call('SREM', KEYS[1] .. 'held:' .. holder, id)
  redis.call('ZADD', KEYS[1] .. 'rows', t, id)
end
"""
