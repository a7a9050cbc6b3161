"""A connection to a Celery broker that is a Redis.

kombu takes a message with BRPOP, and notes afterwards that it did: whoever dies in between takes it
along.  Here both are one step, in kombu's own form: a script takes what is there, and notes it in
the hash `unacked` and the index `unacked_index`.  Waiting is kept apart from that: BLMOVE of the
end of a list to the end of the same list changes nothing, and returns when there is something.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from kombu.utils import json

from wbengine import exceptions as exc
from wbengine.interop.celery.worker import lines
from wbengine.interop.celery.worker.jobs import Past

__all__ = ["Redis"]

LOG = logging.getLogger(__name__)

#: Seconds for which a Redis is asked to wait, and after which it is given up that did not answer.
WAIT: Final = 20.0
_PATIENCE: Final = 10.0

#: The first version that knows BLMOVE.
_OLDEST: Final = [6, 2]

#: So many messages are taken in one step at most.
_MOST: Final = 64

#: Where it is noted which tasks have begun in workers of ours, and for how many seconds at most.
_BEGUN: Final = "wbengine.begun"
_REMEMBERED: Final = 30 * 24 * 3600

#: Takes up to ARGV[1] messages from the lists KEYS[4...], the first of them first, and notes each
#: in the hash KEYS[1] and the index KEYS[2] as taken at ARGV[2].  Returns triples: the number of
#: the list, the message, and 1 if KEYS[3] says that its task has begun; what it said before
#: ARGV[3] is forgotten.  One that cannot be read has no tag to be noted by.
_TAKE: Final = """
local taken, most = {}, tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[3])
for place = 4, #KEYS do
  while #taken < 3 * most do
    local message = redis.call('RPOP', KEYS[place])
    if not message then break end
    local read, found = pcall(function()
      local properties = cjson.decode(message)['properties']
      local info = properties['delivery_info']
      return {properties['delivery_tag'], cjson.encode(info['exchange']),
              cjson.encode(info['routing_key'])}
    end)
    local again = 0
    if read and type(found[1]) == 'string' then
      again = redis.call('ZSCORE', KEYS[3], found[1]) and 1 or 0
      redis.call('ZADD', KEYS[2], ARGV[2], found[1])
      redis.call('HSET', KEYS[1], found[1],
                 '[' .. message .. ', ' .. found[2] .. ', ' .. found[3] .. ']')
    end
    taken[#taken + 1] = place - 4
    taken[#taken + 1] = message
    taken[#taken + 1] = again
  end
end
return taken
"""

#: Notes in KEYS[2] that the tasks of the messages with the tags ARGV begin, each at the moment that
#: follows its tag; returns 1 for each of which that is so now, and 0 for each of which it is not:
#: it is in KEYS[1] no more, or somebody else began it, at another moment.
_MARK: Final = """
local noted = {}
for place = 1, #ARGV, 2 do
  local tag, moment = ARGV[place], ARGV[place + 1]
  local mine = 0
  if redis.call('HEXISTS', KEYS[1], tag) == 1 then
    if redis.call('ZADD', KEYS[2], 'NX', moment, tag) == 1
      or tonumber(redis.call('ZSCORE', KEYS[2], tag)) == tonumber(moment) then mine = 1 end
  end
  noted[#noted + 1] = mine
end
return noted
"""


class _Bell:
    """Waits for one list to hold something."""

    def __init__(self, connection: Any, key: str) -> None:
        self.connection = connection
        self.key = key
        #: When it was asked to wait, on the monotonic clock; None: it does not.
        self.asked: float | None = None

    def ask(self) -> None:
        if self.asked is None:
            self.connection.send_command("BLMOVE", self.key, self.key, "RIGHT", "RIGHT", WAIT)
            self.asked = time.monotonic()

    def answer(self) -> bool:
        """Whether there is something."""
        self.asked = None
        return self.connection.read_response() is not None


class Redis(lines.Awaited):
    """The lists in which kombu keeps queues, one for each step of priority."""

    settles_others = True

    def __init__(self, *given: Any, **others: Any) -> None:
        super().__init__(*given, **others)
        import redis

        self._client = redis.Redis(connection_pool=self.channel.pool)
        self._check_version()
        self._take_more = self._client.register_script(_TAKE)
        self._mark = self._client.register_script(_MARK)
        self._prefix: str = self.channel.global_keyprefix or ""
        self._turns: deque[str] = deque()
        self._bells: dict[str, list[_Bell]] = {}
        # Whether there may be something to take.
        self._more = True
        every = max(0.1, self.channel.unacked_restore_interval)
        self._hub.call_repeatedly(every, self._restore)
        self._hub.call_repeatedly(_PATIENCE, self._check)

    def _check_version(self) -> None:
        """
        :raises TransportFailure: it is too old to be waited for.
        """
        told = str(self._client.info("server").get("redis_version", ""))
        numbers = [int(part) for part in told.split(".")[:2] if part.isdigit()]
        if numbers and numbers < _OLDEST:
            raise exc.TransportFailure(f"it is Redis {told}: this takes 6.2 or later")

    # Queues.

    @property
    def queues(self) -> list[str]:
        return list(self._bells)

    def consume(self, name: str) -> None:
        if name not in self._bells:
            self._turns.append(name)
            self._bells[name] = [self._bell(key) for key in self._keys(name)]
            self._more = True

    def cancel(self, name: str) -> None:
        for bell in self._bells.pop(name, ()):
            self._hub.remove(bell.connection._sock)
            bell.connection.disconnect()
        if name in self._turns:
            self._turns.remove(name)

    def _keys(self, name: str) -> list[str]:
        channel = self.channel
        return [self._prefix + channel._q_for_pri(name, step) for step in channel.priority_steps]

    def _bell(self, key: str) -> _Bell:
        connection = self.channel.pool.connection_class(**self.channel.pool.connection_kwargs)
        connection.connect()
        bell = _Bell(connection, key)
        self._hub.add_reader(connection._sock, self._on_bell, bell)
        return bell

    def _on_bell(self, bell: _Bell) -> None:
        self._more = bell.answer() or self._more

    # Messages.

    def turn(self, timeout: float) -> None:
        if self._more and self.room > 0:
            self._take_some()
        if self._more and self.room > 0:
            timeout = 0.0
        elif not self._more:
            for bells in self._bells.values():
                for bell in bells:
                    bell.ask()
        super().turn(timeout)

    def _take_some(self) -> None:
        wanted = min(self.room, _MOST)
        queues = list(self._turns)
        self._turns.rotate(-1)  # none is always the last
        steps = len(self.channel.priority_steps)
        lists = [self._keys(name) for name in queues]
        order = [lists[at][step] for step in range(steps) for at in range(len(queues))]
        qos = self.channel.qos
        noted = (qos.unacked_key, qos.unacked_index_key, _BEGUN)
        keys = [*(self._prefix + key for key in noted), *order]
        now = time.time()
        taken = self._take_more(keys=keys, args=[wanted, now, now - _REMEMBERED])
        self._more = len(taken) >= 3 * wanted
        for place, text, again in zip(taken[::3], taken[1::3], taken[2::3], strict=True):
            self._on_text(text, queues[int(place) % len(queues)], bool(again))

    def _on_text(self, text: bytes, queue: str, begun: bool) -> None:
        try:
            message = self.channel.Message(json.loads(text), channel=self.channel)
            receipt = lines.Receipt(message, queue, self)
            # Celery's workers put back what they had and did not begin, marked as if they had.
            receipt.past = Past.BEGUN if begun else Past.NONE
        except Exception as error:  # it is no message of kombu's
            LOG.error("dropped what is no message from queue %r: %.200r (%s)", queue, text, error)
            return
        if receipt.tag in self.unsettled:
            return  # we were stopped for long, and others put it back: it is still ours
        self._take(message, receipt)

    def mark(self, receipts: Sequence[lines.Receipt]) -> None:
        qos = self.channel.qos
        keys = [self._prefix + key for key in (qos.unacked_key, _BEGUN)]
        told = [word for receipt in receipts for word in (receipt.tag, _moment(receipt))]
        noted = self._mark(keys=keys, args=told)
        for expected in (True, False):
            found = [r for r, mine in zip(receipts, noted, strict=True) if bool(mine) is expected]
            if not expected:
                for receipt in found:
                    self._forget(receipt)
            if found:
                self._marked(found, expected)

    def settle(self, receipts: Sequence[tuple[lines.Receipt, bool]]) -> None:
        # One that came again, because we were stopped for long, has the same tag: it is still ours.
        mine = [
            receipt
            for receipt, _ in receipts
            if self.unsettled.get(receipt.tag, receipt) is receipt and not receipt.settled
        ]
        for receipt in mine:
            if receipt.back:  # it stays noted as begun
                self.channel.qos.restore_by_tag(receipt.tag)
        tags = [receipt.tag for receipt in mine if not receipt.back]
        if tags:
            qos = self.channel.qos
            with self._client.pipeline() as pipe:
                pipe.zrem(self._prefix + qos.unacked_index_key, *tags)
                pipe.hdel(self._prefix + qos.unacked_key, *tags)
                pipe.zrem(self._prefix + _BEGUN, *tags)
                pipe.execute()
        for receipt, _ in receipts:
            self._forget(receipt)
            receipt.line._forget(receipt)

    def renew(self) -> None:
        found = dict.fromkeys(self.unsettled, time.time())
        if found:
            self._client.zadd(self._prefix + self.channel.qos.unacked_index_key, found, xx=True)

    # From time to time.

    def _restore(self) -> None:
        """Put back what others took, and did not say for long that they have it."""
        channel = self.channel
        # kombu skips most of its calls, since they come with each message; these do not.
        channel.qos.restore_visible(num=channel.unacked_restore_limit, interval=1)
        self._more = True

    def _check(self) -> None:
        """A connection that is gone may not say so."""
        late = time.monotonic() - WAIT - _PATIENCE
        for bells in self._bells.values():
            for bell in bells:
                if bell.asked is not None and bell.asked < late:
                    raise exc.TransportFailure(f"it did not answer for {WAIT + _PATIENCE:.0f} s")

    def close(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.connection.disconnect()
        super().close()


def _moment(receipt: lines.Receipt) -> str:
    """When its task begins; no other worker says the same of it.  It stays, if it is said again."""
    if receipt.noted is None:
        receipt.noted = f"{time.time() + random.random() / 1000:.7f}"
    return str(receipt.noted)
