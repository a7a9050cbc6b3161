"""Transport through Redis: `redis://HOST/DB`, `rediss://HOST/DB`.

Transport options: `prefix` (the name that all keys begin with: that of the exchange, so that others
in the same database are not disturbed), `socket_timeout`, `socket_connect_timeout` (seconds; 5),
`dead_after` (seconds; 10) and `ssl_...` (as redis-py calls them; certificates and host names are
verified unless told otherwise).

Each step is one script, so a process that is killed at any instant leaves a message either in its
queue or with its holder.  Consumers are heard of at least once a second; who was silent for
`dead_after` seconds, on the server's clock, is taken for dead, and what he held goes back to its
old place, marked as redelivered.  How long a message is held does not matter.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import re
import time
import uuid
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from redis import exceptions as errors

from wbengine import _names, exceptions
from wbengine.backoff import Backoff
from wbengine.transports import _envelope, _redis_link, _redis_scripts, _routing
from wbengine.transports._redis_link import LOST, OPTIONS, Client, Link, Place, Script
from wbengine.transports._redis_wait import BlockingWait, Heard
from wbengine.transports.broker import Broker, LaidOut, Taken

__all__ = ["OPTIONS", "RedisBroker", "place"]

LOG = logging.getLogger(__name__)


#: Seconds between two looks after what is in use, and what dead consumers left.
_TEND_EVERY: Final = 2.0
#: Who is heard of each second must not be taken for dead because he is late once.
_LEAST_DEAD_AFTER: Final = 1.5
#: Seconds in which there may be room again.
_NO_ROOM_PAUSE: Final = 0.005
#: Seconds between two notes of who takes messages again and again.
_NOTE_EVERY: Final = 0.2
#: So many messages are taken at once by who has no limit of his own.
_BATCH: Final = 64
#: Pauses before everything is declared once more to a server that forgot it so many seconds ago.
_PAUSES: Final = Backoff(0.05, max_delay=2.0, jitter=0.05)
_FORGETS: Final = 10.0
#: Milliseconds after which a body goes that no script came to use.
_UNUSED: Final = 60_000
#: At most so many are delivered before the drainer looks up.
_AT_ONCE: Final = 1000
#: Bodies of so many bytes are keys of their own: a script hashes each byte of what it is told.
_LARGE: Final = 16 * 1024


def place(url: str | None, options: dict[str, Any] | None = None) -> Place:
    """The part of a Redis that a URL and transport options mean.

    :raises ValueError: they make no sense.
    """
    dead_after = (options or {}).get("dead_after", _LEAST_DEAD_AFTER)
    if not isinstance(dead_after, int | float) or not dead_after >= _LEAST_DEAD_AFTER:
        raise ValueError(
            f"dead_after is {dead_after!r}: it must be {_LEAST_DEAD_AFTER} seconds or more"
        )
    return Place.parse(url or "redis://", options)


#: A consumer that left, as `LEAVE` is told.
Left = tuple[str, str]

#: What could not be said to a Redis that was away: the next connection to it says it first.
_unsaid: Final[dict[Place, list[Left]]] = {}


class TakeOrder(NamedTuple):
    """A take with the end of others: for whom, which, when it was asked for, and how."""

    who: str
    number: str
    at: float
    told: tuple[Any, ...]


class Takes:
    """The takes of one consumer; any thread.

    What came with an answer that he did not hear, and what he heard of and nobody saw, goes back
    when he leaves, as if it had never been taken.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        # `TAKE`, or `TAKE:NUMBER` of a message.
        self._left: set[str] = set()

    def begin(self) -> str:
        """The number of a take, whose answer is not heard until it is said to `end`."""
        number = str(next(self._numbers))
        self._left.add(number)
        return number

    def end(self, number: str, left: Sequence[Taken] = ()) -> None:
        """Its answer was heard, and all but those `left` is looked at."""
        for taken in left:
            self.miss(taken)
        self._left.discard(number)

    def miss(self, taken: Taken) -> None:
        """Nobody looks at it, until it `went` back."""
        self._left.add(_name(taken))

    def went(self, taken: Taken) -> None:
        """It went back."""
        self._left.discard(_name(taken))

    def left(self) -> str:
        """As the script `LEAVE` is told."""
        return " ".join(tuple(self._left))


def _name(taken: Taken) -> str:
    _, number, take = taken.token
    return f"{take}:{number}"


class Routes:
    """The routing of one version; never changes."""

    __slots__ = ("_tables", "version")

    def __init__(
        self, version: str = ":", tables: Mapping[str, _routing.Table] | None = None
    ) -> None:
        self.version = version
        self._tables = tables or {}

    @classmethod
    def read(cls, told: Any) -> Routes:
        """What the script `ROUTES` returned."""
        bound: dict[str, list[tuple[str, str]]] = {}
        for queue, exchange, key in bindings(told):
            bound.setdefault(exchange, []).append((key, queue))
        tables = {exchange: _routing.Table(pairs) for exchange, pairs in bound.items()}
        return cls(told[0].decode(), tables)

    def of(self, exchange: str, key: str) -> Sequence[str]:
        """The queues of what is published to an exchange; to '', of what is put into one queue."""
        if not exchange:
            return (key,)
        table = self._tables.get(exchange)
        return () if table is None else table.route(key)


def bindings(told: Any) -> Iterator[tuple[str, str, str]]:
    """All (queue, exchange, routing key) of what the script `ROUTES` returned."""
    for binding in told[2]:
        exchange, queue, key = binding.decode("utf-8", "surrogateescape").split("\0", 2)
        yield queue, exchange, key


class Prefetched:
    """What came with the end of a wait, in order, until there is room for it.  Of one thread."""

    def __init__(self) -> None:
        self._taken: list[Taken] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def add(self, taken: Taken) -> None:
        self._taken.append(taken)

    def hand_over(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        """For each group at most so many, with the number of the group."""
        places = {queue: place for place, (_, queues) in enumerate(groups) for queue in queues}
        room = [most for most, _ in groups]
        found, self._taken, prefetched = [], [], self._taken
        for taken in prefetched:
            place = places.get(taken.queue)
            if place is not None and room[place] > 0:
                room[place] -= 1
                found.append((place, taken))
            else:
                self._taken.append(taken)
        return found

    def leave(self, consumed: Container[str]) -> list[Taken]:
        """What is of other queues: nobody consumes it any more."""
        left = [taken for taken in self._taken if taken.queue not in consumed]
        self._taken = [taken for taken in self._taken if taken.queue in consumed]
        return left


class RedisClaims(Protocol):
    """For whom requests are claimed in the ledger of the same Redis, by the scripts that take and
    answer them."""

    holder: str
    #: Milliseconds that results are kept; '': for ever.
    ttl: int | str

    @property
    def digest(self) -> str:
        """Of that ledger."""

    def greet(self, link: Link) -> None:
        """Begin a connection that claims."""

    def read(self, said: Sequence[Any]) -> Any:
        """What `Taken.claim` is to be: from verdict, epoch, holder, result, and the count."""

    def restore(self) -> None:
        """The server may have lost everything: see that it still is that ledger.  Never raises."""


class RedisBroker(Broker):
    """One connection to a part of a Redis.

    What it declared it declares again, should the server have lost it.
    """

    batch = _BATCH
    labels = True
    recoverable_connection_errors = LOST

    def __init__(
        self,
        where: Place,
        claims: RedisClaims | None = None,
        dead_after: float = _redis_scripts.DEAD_AFTER,
    ) -> None:
        super().__init__()
        self.place = where
        greet = claims.greet if claims is not None else None
        self._client = Client(where, exceptions.TransportFailure, greet)
        self._run = self._client.run
        # What is declared again after a loss, and where the first of it was declared.
        self._where = ""
        self._exchanges: dict[str, None] = {}
        self._queues: dict[str, bool] = {}
        self._bindings: dict[str, None] = {}
        self._claims = claims
        self._dead_after = dead_after
        self._who = ""
        self._waiting = BlockingWait(where, lambda: self._run(_redis_scripts.POKE, self._who))
        self._takes = Takes()
        # Bodies that go apart are called by what no other process says.
        self._id, self._bodies = uuid.uuid4().hex, itertools.count()
        self._missed = False
        self._look = True
        # What comes with the end of a wait, and the number of the take that it comes with.
        self._prefetched = Prefetched()
        self._awaited = ""
        self._tend_at = 0.0
        self._note_at = 0.0
        self._watched: Counter[str] = Counter()
        self._routes = Routes()
        # How often it declared everything again lately, and when last.
        self._forgotten, self._declared_at = 0, -math.inf
        self._closed = False

    @classmethod
    def reach(cls, where: Place, options: Mapping[str, Any]) -> RedisBroker:
        """Connect; `options` are those of the transport.

        :raises LOST: the server cannot be reached.
        """
        dead_after = options.get("dead_after", _redis_scripts.DEAD_AFTER)
        made = cls(where, options.get("claims"), dead_after)
        try:
            made._reach()
        except BaseException:
            made.close()
            raise
        return made

    def _reach(self) -> None:
        self._routes = Routes.read(self._run(_redis_scripts.ROUTES))
        for left in tuple(_unsaid.get(self.place, ())):
            self._run(_redis_scripts.LEAVE, *left)
            with contextlib.suppress(ValueError):  # another thread said it, too
                _unsaid[self.place].remove(left)

    # -- declaring

    def declare_exchange(self, name: str) -> None:
        self._exchanges[_names.check_label("exchange", name)] = None
        self._declare(_redis_scripts.EXCHANGE, name, "topic")

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        _names.check_label("queue", queue)
        self._queues[queue] = owned or self._queues.get(queue, False)
        self._declare(_redis_scripts.QUEUE, queue, int(owned))

    def delete_queue(self, queue: str) -> int:
        self._queues.pop(queue, None)
        for binding in [each for each in tuple(self._bindings) if each.split("\0")[1] == queue]:
            self._bindings.pop(binding, None)
        return int(self._run(_redis_scripts.DROP_QUEUE, queue))

    def _declare(self, script: Script, *args: Any) -> None:
        where = self._run(script, uuid.uuid4().hex, *args).decode()
        self._where = self._where or where

    def purge(self, queue: str) -> int:
        return int(self._run(_redis_scripts.PURGE, queue))

    def size(self, queue: str) -> int:
        return int(self._run(_redis_scripts.SIZE, queue))

    def bind(self, exchange: str, key: str, queue: str) -> None:
        binding = f"{exchange}\0{queue}\0{key}"
        self._bindings[binding] = None
        self._run(_redis_scripts.BIND, binding)

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        binding = f"{exchange}\0{queue}\0{key}"
        self._bindings.pop(binding, None)
        self._run(_redis_scripts.UNBIND, binding)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return bindings(self._run(_redis_scripts.ROUTES))

    def _redeclare(self) -> None:
        for name in tuple(self._exchanges):
            self.declare_exchange(name)
        for queue, owned in tuple(self._queues.items()):
            self.declare_queue(queue, owned=owned)
        for binding in tuple(self._bindings):
            self._run(_redis_scripts.BIND, binding)

    # -- publishing

    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        """One step, and one round trip while nobody declares anything."""
        done = self._routed(_redis_scripts.PUT, [((), message) for message in messages])
        return map(bool, done)

    def open_and_put(
        self, first: tuple[Any, ...], messages: Sequence[tuple[tuple[Any, ...], LaidOut]]
    ) -> Sequence[Any]:
        """Publish, and make the row of each message in the same step; as the script is told, and
        answers."""
        return self._routed(_redis_scripts.OPEN_AND_PUT, messages, *first)

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int], Taken, LaidOut]],
        told: TakeOrder | None = None,
    ) -> tuple[Sequence[int], Sequence[Taken]]:
        assert self._claims is not None
        rows = [
            ((*row, taken.token[0], taken.queue, taken.token[1]), message)
            for row, taken, message in ended
        ]
        take = () if told is None else told.told
        *counts, found = self._routed(
            _redis_scripts.END, rows, self._claims.holder, self._claims.ttl, len(take), *take
        )
        if told is None or found is None:  # forgotten: whoever waits finds that out
            return counts, ()
        return counts, [self._taken(told.who, told.number, told.at, *rest) for _, *rest in found]

    def order(self, most: int, queues: Sequence[str]) -> TakeOrder | None:
        if not self._who:
            return None
        at, number = time.monotonic(), self._takes.begin()
        told = *self._asking(number, at), most, len(queues), *queues
        return TakeOrder(self._who, number, at, told)

    def heard(self, told: TakeOrder, left: Sequence[Taken]) -> None:
        self._takes.end(told.number, left)

    def missed(self, told: TakeOrder) -> None:
        self._missed = True
        self.nudge()

    def _routed(
        self,
        script: Script,
        messages: Sequence[tuple[tuple[Any, ...], LaidOut]],
        *first: Any,
    ) -> Sequence[Any]:
        whole = False
        while True:
            routes = self._routes
            told: list[Any] = []
            bodies: list[tuple[Any, ...]] = []
            names = ""
            for number, (before, (exchange, key, priority, head, body)) in enumerate(messages):
                queues = routes.of(exchange, key)
                if len(body) < _LARGE or len(queues) != 1 or whole:
                    head += body
                else:
                    name = f"{self._id}{next(self._bodies):x}"
                    bodies.append(("SET", f"{self.place.prefix}b:{name}", body, "PX", _UNUSED))
                    names += f"{number}:{name} "
                told += *before, priority, head, len(queues), *queues
            done: list[Any] | None = self._run(
                script, routes.version, names, *first, *told, after=bodies
            )
            if done is None:  # there was no room for a body, or it went before it was of use
                whole = True
            elif isinstance(done[0], int):
                return done
            else:
                self._routes = Routes.read(done)

    # -- taking

    def watch(self, queue: str) -> None:
        self._watched[queue] += 1
        self._look = True

    def unwatch(self, queue: str) -> None:
        self._watched -= Counter((queue,))  # it forgets what is down to none
        if not self._client.broken:
            self._recall()
            for taken in self._prefetched.leave(self._watched):
                self.give_back(taken, delivered=False)

    def refresh(self) -> int:
        if self._missed:
            raise errors.ConnectionError("an answer did not come, and with it perhaps requests")
        now = time.monotonic()
        if now >= self._tend_at:
            # Well before anybody is dead: a longer pause means that nobody could be heard.
            self._tend_at = now + min(_TEND_EVERY, self._dead_after / 3)
            self._tend()
        return _AT_ONCE if self._look else 0

    def _tend(self) -> None:
        mine = [queue for queue, owned in tuple(self._queues.items()) if owned]
        rest = [queue for queue in self._watched if queue not in mine]
        told = self._dead_after, self._who, len(mine), *mine, *rest
        dead = self._run(_redis_scripts.TEND, *told)
        if dead:
            LOG.info("%s: what %d dead consumers held went back", self.place.shown, dead)

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        self._look = False  # from here on, a nudge sets it again
        self._recall()
        if self._prefetched and (found := self._prefetched.hand_over(groups)):
            alone = all(self._queues.get(queue) for _, queues in groups for queue in queues)
            self._look = bool(self._prefetched) or not alone
            return found
        found = self._take(groups)
        counts = [0] * len(groups)
        for group, _ in found:
            counts[group] += 1
        if any(count >= most >= _BATCH for count, (most, _) in zip(counts, groups, strict=True)):
            self._look = True  # else there is no room, or nothing, and a bell rings for what comes
        return found

    def _take(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        told: list[Any] = []
        for most, queues in groups:
            told += most, len(queues), *queues
        while True:
            who = self._who or self._join()
            # The answer may come late, and by then somebody else may have been given what is in it.
            began, number = time.monotonic(), self._takes.begin()
            try:
                found = self._run(_redis_scripts.TAKE, *self._asking(number, began), *told)
            except exceptions.TransportFailure:  # nothing was done
                self._takes.end(number)
                raise
            self._takes.end(number)
            if found is not None:
                return [(group, self._taken(who, number, began, *rest)) for group, *rest in found]
            self._declare_again()

    def _asking(self, number: str, now: float) -> tuple[Any, ...]:
        """Who takes, and for whom it is claimed."""
        # Now and then will do to note that we are there.
        due = now >= self._note_at
        if due:
            self._note_at = now + _NOTE_EVERY
        claims = self._claims
        holder, digest = (claims.holder, claims.digest) if claims is not None else ("", "")
        return self._who, number, holder, digest, int(due)

    def _taken(
        self,
        who: str,
        take: str,
        began: float,
        queue: bytes,
        number: bytes,
        data: bytes,
        said: Any = None,
    ) -> Taken:
        token = who, number.decode(), take
        label, data = _envelope.split(data)
        taken = Taken(queue.decode(), token, data, number.endswith(b"r"))
        if len(number) > 32:
            taken.away = re.split(b"[@&r]", number)[1]
        if said is not None and self._claims is not None:
            taken.claim, taken.at = self._claims.read(said), began
            taken.label = label
        return taken

    def fetch(self, taken: Iterable[Taken]) -> None:
        away = [one for one in taken if one.away]
        if not away:
            return
        keys = [f"{self.place.prefix}b:{one.away.decode()}" for one in away]
        for one, body in zip(away, self._client.call("MGET", *keys), strict=True):
            one.body, one.away = body or b"", b""
            if body is None and "&" in one.token[1]:
                one.data = None

    def _join(self) -> str:
        # A name is used once: what it held, and is not known of any more, was given to others.
        # Whatever is lost before it is known is seen by the id, and afterwards by the name.
        who = uuid.uuid4().hex
        while not self._run(_redis_scripts.JOIN, who, self._where):
            self._declare_again()
        self._who = who
        return who

    def _declare_again(self) -> None:
        """We were taken for dead, or the server lost what it had."""
        LOG.warning("%s forgot this consumer: everything is declared again", self.place.shown)
        # Each of those whom a server forgets that evicts keys would make it evict those of others.
        now = time.monotonic()
        self._forgotten = self._forgotten + 1 if now - self._declared_at < _FORGETS else 0
        if self._forgotten:
            time.sleep(_PAUSES.seconds(self._forgotten))
        self._declared_at = time.monotonic()
        self._who = self._where = ""
        if self._claims is not None:
            self._claims.restore()
        self._note_at = 0.0
        self._redeclare()

    def settle_many(self, taken: Sequence[Taken]) -> bool:
        """One step for each queue, and each name that they were taken under."""
        if self._closed or self._client.broken:
            return False
        held: dict[tuple[str, str], list[str]] = {}
        for one in taken:
            who, number, _ = one.token
            held.setdefault((who, one.queue), []).append(number)
        count = 0
        for (who, queue), numbers in held.items():
            for some in _redis_link.portions(numbers):
                count += self._run(_redis_scripts.SETTLE, who, queue, *some)
        return count == len(taken)

    def refuse(self, taken: Taken) -> None:
        if not (self._closed or self._client.broken):
            self._run(_redis_scripts.REFUSE, taken.token[0], taken.queue, taken.token[1])

    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        if not delivered:
            self._takes.miss(taken)
        if self._client.broken:
            return  # all that was held goes back at once, when this is closed
        who, number, _ = taken.token
        try:
            self._run(_redis_scripts.GIVE_BACK, who, taken.queue, number, int(delivered))
            self._takes.went(taken)
        except (*LOST, exceptions.TransportFailure):
            if delivered:
                raise

    def discard(self, taken: Taken, why: str) -> None:
        self.discards.tell(
            taken.queue, "a message in queue %s was thrown away: %s", taken.queue, why
        )
        self.refuse(taken)

    # -- waiting

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """What waits in queues of our own comes with the end of the wait: it is nobody else's.

        Not so requests that others could take as well: who waits may be frozen by now.
        """
        if len(queues) < len(self._watched) and self._waiting.pause(
            min(_NO_ROOM_PAUSE, timeout or _NO_ROOM_PAUSE)
        ):
            self._look = True  # there is room again, where there was none
            return
        who = self._who or self._join()
        alone = queues and all(map(self._queues.get, queues))
        then = functools.partial(self._take_then, who, queues) if alone else None
        self._hear(self._waiting.wait(timeout, who, queues, then), queues)

    def _take_then(self, who: str, queues: Sequence[str]) -> tuple[Any, ...]:
        self._awaited = number = self._takes.begin()
        told = who, number, "", "", 1, _BATCH, len(queues), *queues
        return "EVALSHA", _redis_scripts.TAKE.digest, 1, self.place.prefix, *told

    def _hear(self, heard: Heard, queues: Sequence[str]) -> None:
        self._look = self._look or heard.look
        for told in heard.answers:
            self._takes.end(self._awaited)
            for _, *rest in told or ():
                self._prefetched.add(self._taken(self._who, self._awaited, 0.0, *rest))
            if told is None:
                self._declare_again()
            self._look = self._look or told != []
        if heard.rung and heard.rung not in queues:
            self._run(_redis_scripts.RING, heard.rung)

    def _recall(self) -> None:
        if self._waiting.takes:
            self._hear(self._waiting.recall(), ())

    def nudge(self) -> None:
        self._look = True
        self._waiting.nudge()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.close()
        if self._who or self._exchanges or self._queues:
            self._leave()
        self._client.close()

    def _leave(self) -> None:
        """Give back what is held, and clean up behind the last one.  Never raises."""
        left = (self._who, self._takes.left())
        again = Client(self.place.hurried(1.0, 1.0), exceptions.TransportFailure)
        for client in self._client, again:
            try:
                client.run(_redis_scripts.LEAVE, *left)
                break
            except (*LOST, exceptions.TransportFailure) as error:
                LOG.debug("%s was not told that a consumer left: %s", self.place.shown, error)
        else:
            _unsaid.setdefault(self.place, []).append(left)
        again.close()

    def __del__(self) -> None:
        # A connection that was dropped without `release()`; half-made stores have no `_closed`.
        # Nothing is said to the server here: it may be away, and others see that we are silent.
        if not getattr(self, "_closed", True):
            self._closed = True
            self._waiting.close()
            self._client.close()
