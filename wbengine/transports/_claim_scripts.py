"""Claiming a row of a ledger in Redis, as Lua: the script that takes a request claims its row in
the same step, so this is on a lower floor than the ledger, which uses it, too.

Keys, all below one prefix:

    r:ID          a row: epoch `e`, state `s`, holder `h`, result `d`, which claim it was `k`; where
                  it is OPEN, `k` is the claim that is not granted
    rows          ids, by when their rows were opened or ended (the server's clock, milliseconds)
    held:HOLDER   the ids of the rows that a holder has
    beats         holders, by when they were last heard of
    ledger        which ledger this is
    users         who has it open, by when he was last heard of
    fence:USER    up to which fence of his he makes no rows, and lets go of none, any more; it goes
                  an hour after the last time that he got no answer, whoever closes the ledger
"""

from __future__ import annotations

from typing import Final

#: claim(id, epoch, holder, name of this claim) -> verdict, epoch, holder, result
#:
#: The holder is to be heard of (`beats`) at about that time.  Who got no answer claims again by the
#: same name, and is granted what he was granted.
CLAIM: Final = """
local function claim(id, epoch, holder, name)
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
  if row[5] == name then return {'MISSING', epoch, '', ''} end
  redis.call('HSET', r, 's', 'claimed', 'h', holder, 'k', name)
  redis.call('SADD', KEYS[1] .. 'held:' .. holder, id)
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
