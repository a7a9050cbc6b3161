"""Transport through Redis: `redis://HOST/DB`, `rediss://HOST/DB`.

Options: :ref:`transport-options`.

Each step is one command or one atomic script. If a process is killed, each message is either in its
queue or assigned to its consumer. Consumers report at least once a second. If a consumer is silent
for `dead_after` seconds on the server's clock, its messages are requeued in their old place and
marked as redelivered. Messages may remain unacknowledged for any time.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from redis import exceptions as errors

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._redis.lua_scripts import Step
from wbengine._text import data_formats
from wbengine.backoff import Backoff
from wbengine.transports import _encoding, _routing
from wbengine.transports._broker import MAX_READY, Broker, Delivery, Finish, Frame
from wbengine.transports._ledger import Opening, RowAccess
from wbengine.transports._redis import redis_link, redis_scripts
from wbengine.transports._redis.redis_link import LOST, Client, Place
from wbengine.transports._redis.redis_scripts import (
    Binding,
    DeclaredQueue,
    Routing,
    Take,
    TakenEntry,
)
from wbengine.transports._redis.redis_wait import BlockingWait, WaitResult

__all__ = ["RedisBroker", "place"]

LOG = logging.getLogger(__name__)

T = TypeVar("T")


#: Interval at which a connection refreshes its keys and requeues messages of dead consumers.
_SWEEP_SECONDS: Final = 2.0
#: Minimum of `dead_after`: consumers report each second, and one report may be late.
_MIN_DEAD_AFTER_SECONDS: Final = 1.5
#: Pause while some consumers have no capacity.
_NO_CAPACITY_PAUSE_SECONDS: Final = 0.005
_MAX_MESSAGES_PER_BATCH: Final = 64
#: Pauses between two redeclarations if data is lost repeatedly.
_REDECLARE_BACKOFF: Final = Backoff(0.05, max_delay=2.0, jitter=0.05)
_RECENT_LOSS_SECONDS: Final = 10.0
#: Time after which an out-of-line body expires unless a script uses it.
_UNUSED_BODY_MILLISECONDS: Final = 60_000
#: Size from which bodies are stored out of line, because Redis hashes all arguments of a script.
_LARGE_BODY_BYTES: Final = 16 * 1024


def place(url: str | None, options: dict[str, Any] | None = None) -> Place:
    """Return the part of a Redis that a URL and transport options identify.

    :raises ValueError: if they are invalid.
    """
    dead_after = (options or {}).get("dead_after", _MIN_DEAD_AFTER_SECONDS)
    if not isinstance(dead_after, int | float) or not dead_after >= _MIN_DEAD_AFTER_SECONDS:
        raise ValueError(
            f"dead_after must be at least {_MIN_DEAD_AFTER_SECONDS} seconds, got {dead_after!r}"
        )
    return Place.parse(url or "redis://", options)


#: Departures of consumers while Redis was unreachable. The next connection sends them first.
_unsent_leaves: Final[dict[Place, list[Step[bool]]]] = {}


class TakeOrder(NamedTuple):
    """A take that follows replies or a wait, and its start time on the monotonic clock."""

    take: Take
    at: float


class Takes:
    """The messages that one consumer took from queues, but may not have received. Thread-safe.

    A take is one command that takes messages. When the consumer leaves, two kinds of messages are
    requeued as if they had not been taken: those of takes without a reply, and undelivered ones.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        # `TAKE` for a take without a reply, or `TAKE:NUMBER` for an undelivered message.
        self._undelivered: set[str] = set()

    def begin(self) -> str:
        """Return the number of a new take, which has no reply until `end`."""
        number = str(next(self._numbers))
        self._undelivered.add(number)
        return number

    def end(self, number: str, undelivered: Sequence[Delivery] = ()) -> None:
        """Record the reply to a take. Its messages are delivered, except `undelivered`."""
        for delivery in undelivered:
            self.mark_undelivered(delivery)
        self._undelivered.discard(number)

    def mark_undelivered(self, delivery: Delivery) -> None:
        self._undelivered.add(_name(delivery))

    def mark_requeued(self, delivery: Delivery) -> None:
        self._undelivered.discard(_name(delivery))

    def undelivered(self) -> tuple[str, ...]:
        """Return the argument of the script `leave`."""
        return tuple(self._undelivered)


def _name(delivery: Delivery) -> str:
    _, number, take = delivery.token
    return f"{take}:{number}"


class Routes:
    """The routing tables and their version. Immutable."""

    __slots__ = ("_tables", "version")

    def __init__(
        self, version: str = ":", tables: Mapping[str, _routing.RoutingTable] | None = None
    ) -> None:
        self.version = version
        self._tables = tables or {}

    @classmethod
    def read(cls, routing: Routing) -> Routes:
        bound: dict[str, list[tuple[str, str]]] = {}
        for queue, exchange, key in routing.bindings:
            bound.setdefault(exchange, []).append((key, queue))
        tables = {exchange: _routing.RoutingTable(pairs) for exchange, pairs in bound.items()}
        return cls(routing.version, tables)

    def of(self, exchange: str, key: str) -> Sequence[str]:
        """Return the queues for a key. If there is no exchange, the key is a queue."""
        if not exchange:
            return (key,)
        table = self._tables.get(exchange)
        return () if table is None else table.route(key)


class Prefetched:
    """Messages that arrived with the end of a wait, until consumers have capacity.

    For one thread.
    """

    def __init__(self) -> None:
        self._taken: list[Delivery] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def add(self, delivery: Delivery) -> None:
        self._taken.append(delivery)

    def hand_over(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        """Remove messages for each group, up to its limit; return them with the group's index."""
        places = {queue: group for group, (_, queues) in enumerate(groups) for queue in queues}
        capacities = [max_messages for max_messages, _ in groups]
        messages, self._taken, prefetched = [], [], self._taken
        for delivery in prefetched:
            group = places.get(delivery.queue)
            if group is not None and capacities[group] > 0:
                capacities[group] -= 1
                messages.append((group, delivery))
            else:
                self._taken.append(delivery)
        return messages

    def remove(self, of: Callable[[str], bool]) -> list[Delivery]:
        """Remove and return the messages of the queues for which `of(queue)` is true."""
        removed = [delivery for delivery in self._taken if of(delivery.queue)]
        self._taken = [delivery for delivery in self._taken if not of(delivery.queue)]
        return removed


class RedisBroker(Broker):
    """One connection to a part of a Redis.

    If the server loses data, the connection repeats its declarations.
    """

    batch = _MAX_MESSAGES_PER_BATCH
    labels = True
    recoverable_connection_errors = LOST

    def __init__(
        self,
        place: Place,
        rows: RowAccess | None = None,
        dead_after: float = redis_scripts.DEAD_AFTER_SECONDS,
    ) -> None:
        super().__init__()
        self.place = place
        self._rows = rows or RowAccess()
        greet = self._rows.ledger.greet if self._rows.holder else None
        self._client = Client(place, exceptions.TransportFailure, greet)
        self._run = self._client.run
        # Declarations to repeat, and the id of the data that contains the first one.
        self._data_id = ""
        self._queues: dict[str, bool] = {}
        self._bindings: dict[Binding, None] = {}
        self._dead_after = dead_after
        self._consumer_name = ""
        self._waiting = BlockingWait(
            place, lambda: self._run(redis_scripts.end_wait(self._consumer_name))
        )
        self._takes = Takes()
        # Makes the names of out-of-line bodies unique across processes.
        self._id, self._bodies = uuid.uuid4().hex, itertools.count()
        self._missed = False
        self._must_poll = True
        # Messages that arrive at the end of a wait, and their take.
        self._prefetched = Prefetched()
        self._awaited: TakeOrder | None = None
        self._next_sweep_at = 0.0
        self._watched_queues: Counter[str] = Counter()
        self._routes = Routes()
        # Number of recent redeclarations, and the time of the last one.
        self._recent_losses, self._declared_at = 0, -math.inf
        self._closed = False

    @classmethod
    def reach(cls, place: Place, rows: RowAccess, options: Mapping[str, Any]) -> RedisBroker:
        """Connect.

        :raises OSError: or another exception of `LOST`, if the server cannot be reached.
        :raises TransportFailure: if another release wrote the keys in a format that is not read.
        """
        dead_after = options.get("dead_after", redis_scripts.DEAD_AFTER_SECONDS)
        broker = cls(place, rows, dead_after)
        try:
            broker._reach()
        except BaseException:
            broker.close()
            raise
        return broker

    def _reach(self) -> None:
        written = self._client.call("HGET", f"{self.place.prefix}m", "f")
        if written is not None:
            data_formats.REDIS.check(self.place.shown, int(written), exceptions.TransportFailure)
        self._routes = Routes.read(self._read_routing())
        for departure in tuple(_unsent_leaves.get(self.place, ())):
            self._run(departure)
            with contextlib.suppress(ValueError):  # Another thread sent it, too.
                _unsent_leaves[self.place].remove(departure)

    def declare_exchange(self, name: str) -> None:
        """Check the name. An exchange exists in Redis only as the bindings to it."""
        object_names.check_label("exchange", name)

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        object_names.check_label("queue", queue)
        self._queues[queue] = owned or self._queues.get(queue, False)
        self._declare([DeclaredQueue(queue, owned)])

    def _declare(self, queues: Sequence[DeclaredQueue], bindings: Sequence[Binding] = ()) -> None:
        data_id = self._run(redis_scripts.declare(uuid.uuid4().hex, queues, bindings))
        self._data_id = self._data_id or data_id

    def delete_queue(self, queue: str) -> int:
        self._queues.pop(queue, None)
        for binding in [each for each in tuple(self._bindings) if each.queue == queue]:
            self._bindings.pop(binding, None)
        return self._run(redis_scripts.empty_queue(queue, is_deleted=True))

    def purge(self, queue: str) -> int:
        return self._run(redis_scripts.empty_queue(queue, is_deleted=False))

    def size(self, queue: str) -> int:
        return int(self._client.call("ZCARD", f"{self.place.prefix}q:{queue}"))

    def silent_queues(self) -> frozenset[str]:
        seconds, micros = self._client.call("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        silent_since = now - redis_scripts.GONE_AFTER_SECONDS * 1000
        # After a pause in which no process swept, owners first get time to report.
        last, since = self._client.call("HMGET", f"{self.place.prefix}m", "t", "since")
        if int(last or 0) < silent_since or int(since or now) > silent_since:
            return frozenset()
        silent = self._client.call("ZRANGEBYSCORE", f"{self.place.prefix}own", "-inf", silent_since)
        return frozenset(name.decode() for name in silent)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        binding = Binding(exchange, queue, key)
        self._bindings[binding] = None
        self._run(redis_scripts.declare("", (), [binding]))

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        binding = Binding(exchange, queue, key)
        self._bindings.pop(binding, None)
        self._run(redis_scripts.declare("", (), (), [binding]))

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return self._read_routing().bindings

    def _read_routing(self) -> Routing:
        # A version that is older than the bindings is refused when it is used.
        data_id, version = self._client.call("HMGET", f"{self.place.prefix}m", "id", "v")
        names = self._client.call("HKEYS", f"{self.place.prefix}b")
        return Routing.read(b"%b:%b" % (data_id or b"", version or b""), names)

    def _redeclare(self) -> None:
        queues = [DeclaredQueue(*queue) for queue in tuple(self._queues.items())]
        self._declare(queues, tuple(self._bindings))

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        """Publish messages in one step, with one round trip unless the routing has changed."""
        return map(bool, self.publish_with(redis_scripts.publish, frames))

    def open_and_publish(self, rows: Sequence[Opening], frames: Sequence[Frame]) -> Sequence[int]:
        # Rows are opened in the session of the ledger, which outlives this connection.
        counts: Sequence[int] = self._rows.ledger.open_and_publish(self.publish_with, rows, frames)
        return counts

    def _finish(
        self, batch: Sequence[Finish], take_order: TakeOrder | None
    ) -> tuple[Sequence[bool], Sequence[Delivery]]:
        script = functools.partial(
            redis_scripts.finish_requests,
            requests=[
                redis_scripts.FinishedRequest(
                    id, epoch, delivery.token[0], delivery.queue, delivery.token[1]
                )
                for id, epoch, delivery, _ in batch
            ],
            holder=self._rows.holder,
            ttl=self._rows.ledger.ttl,
            order=take_order and take_order.take,
        )
        counts, entries = self.publish_with(script, [each.reply for each in batch])
        finished = [count >= 0 for count in counts]
        # None: the consumer is unknown, which its next wait detects.
        if take_order is None or entries is None:
            return finished, ()
        return finished, [self._taken(take_order.take, take_order.at, entry) for entry in entries]

    def prepare_take(self, max_messages: int, queues: Sequence[str]) -> TakeOrder | None:
        if not self._consumer_name:
            return None
        now = time.monotonic()
        return TakeOrder(self._begin_take(((max_messages, queues),)), now)

    def confirm_taken(self, take_order: TakeOrder, undelivered: Sequence[Delivery]) -> None:
        self._takes.end(take_order.take.number, undelivered)

    def fail_taken(self, take_order: TakeOrder) -> None:
        self._missed = True
        self.nudge()

    def publish_with(
        self,
        script: Callable[[redis_scripts.RoutedBatch], Step[redis_scripts.Publication[T]]],
        frames: Sequence[Frame],
    ) -> T:
        """Run a script that publishes messages."""
        inline_bodies = False
        while True:
            routes = self._routes
            routed: list[redis_scripts.RoutedMessage] = []
            stores: list[tuple[Any, ...]] = []
            for frame in frames:
                head, body, name = frame.head, frame.body, ""
                queues = routes.of(frame.exchange, frame.routing_key)
                if len(body) < _LARGE_BODY_BYTES or len(queues) != 1 or inline_bodies:
                    head += body
                else:
                    name = f"{self._id}{next(self._bodies):x}"
                    body_key = f"{self.place.prefix}b:{name}"
                    stores.append(("SET", body_key, body, "PX", _UNUSED_BODY_MILLISECONDS))
                is_bound = frame.exchange != ""
                routed.append(
                    redis_scripts.RoutedMessage(frame.priority, head, name, queues, is_bound)
                )
            batch = redis_scripts.RoutedBatch(routes.version, routed)
            publication = self._run(script(batch), stores)
            if publication.result is not None:
                return publication.result
            if publication.routing is not None:
                self._routes = Routes.read(publication.routing)
            else:  # A body could not be stored, or it expired before the script ran.
                inline_bodies = True

    def watch(self, queue: str) -> None:
        self._watched_queues[queue] += 1
        self._must_poll = True

    def unwatch(self, queue: str) -> None:
        self._watched_queues -= Counter((queue,))  # This removes counts of zero.
        if not self._client.broken:
            self._recall()
            for delivery in self._prefetched.remove(lambda q: q not in self._watched_queues):
                self.requeue(delivery, delivered=False)

    def refresh(self) -> int:
        if self._missed:
            raise errors.ConnectionError(
                "a reply of Redis was lost; it may have contained requests"
            )
        now = time.monotonic()
        if now >= self._next_sweep_at:
            # This interval must be short compared with `dead_after`: after a long pause, the
            # scripts assume an outage of the server in which no consumer could report.
            self._next_sweep_at = now + min(_SWEEP_SECONDS, self._dead_after / 3)
            self._sweep_dead_consumers()
        return MAX_READY if self._must_poll else 0

    def _sweep_dead_consumers(self) -> None:
        owned_queues = [queue for queue, owned in tuple(self._queues.items()) if owned]
        consumed_queues = [queue for queue in self._watched_queues if queue not in owned_queues]
        dead = self._run(
            redis_scripts.sweep_dead_consumers(
                self._dead_after, self._consumer_name, owned_queues, consumed_queues
            )
        )
        if dead:
            LOG.info("%s: the messages of %d dead consumers were requeued", self.place.shown, dead)

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        self._recall()
        messages = self._prefetched.hand_over(groups) if self._prefetched else []
        # If limits were reduced during the wait, other consumers can run the remaining requests.
        for delivery in self._prefetched.remove(lambda queue: not self._queues.get(queue)):
            self.requeue(delivery, delivered=False)
        self._must_poll = bool(self._prefetched)
        if messages:
            return messages
        messages = self._take(groups)
        counts = [0] * len(groups)
        for group, _ in messages:
            counts[group] += 1
        if any(
            count >= max_messages >= _MAX_MESSAGES_PER_BATCH
            for count, (max_messages, _) in zip(counts, groups, strict=True)
        ):
            self._must_poll = True  # If all messages were taken, the next one causes a wake-up.
        return messages

    def _take(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        while True:
            if not self._consumer_name:
                self._join()
            # Read the time before the call: its reply may arrive after its claims have expired.
            began = time.monotonic()
            take = self._begin_take(groups)
            try:
                entries = self._run(redis_scripts.take(take))
            except exceptions.TransportFailure:  # Nothing was taken.
                self._takes.end(take.number)
                raise
            self._takes.end(take.number)
            if entries is not None:
                return [(entry.group, self._taken(take, began, entry)) for entry in entries]
            self._redeclare_after_loss()

    def _begin_take(self, groups: Sequence[tuple[int, Sequence[str]]]) -> Take:
        holder = self._rows.holder
        digest = self._rows.ledger.digest if holder else ""
        return Take(self._consumer_name, self._takes.begin(), holder, digest, groups)

    def _taken(self, take: Take, began: float, entry: TakenEntry) -> Delivery:
        label, data = _encoding.split(entry.data)
        token = take.consumer, entry.number, take.number
        delivery = Delivery(entry.queue, token, data, entry.number.endswith("r"))
        if len(entry.number) > 32:
            delivery.body_location = re.split("[@&r]", entry.number)[1]
        if entry.claim is not None:
            delivery.claim, delivery.taken_at = self._rows.ledger.read(entry.claim), began
            delivery.label = label
        return delivery

    def fetch(self, deliveries: Iterable[Delivery]) -> None:
        incomplete = [message for message in deliveries if message.body_location]
        if not incomplete:
            return
        keys = [f"{self.place.prefix}b:{message.body_location}" for message in incomplete]
        for message, body in zip(incomplete, self._client.call("MGET", *keys), strict=True):
            message.body, message.body_location = body or b"", ""
            if body is None and "&" in message.token[1]:
                message.data = None

    def _join(self) -> str:
        # Each name is used once, because the messages of a forgotten name were requeued.
        # `_data_id` detects a loss of data before this registration, the name a later loss.
        consumer = uuid.uuid4().hex
        while not self._run(redis_scripts.join(consumer, self._data_id, self._rows.holder)):
            self._redeclare_after_loss()
        self._consumer_name = consumer
        return consumer

    def _redeclare_after_loss(self) -> None:
        """Repeat all declarations: the server lost data, or treats this consumer as dead."""
        LOG.warning(
            "%s has no record of this consumer: declaring its queues and bindings again",
            self.place.shown,
        )
        # If the server evicts keys, each redeclaration can evict those of other processes.
        now = time.monotonic()
        self._recent_losses = (
            self._recent_losses + 1 if now - self._declared_at < _RECENT_LOSS_SECONDS else 0
        )
        if self._recent_losses:
            time.sleep(_REDECLARE_BACKOFF.seconds(self._recent_losses))
        self._declared_at = time.monotonic()
        self._consumer_name = self._data_id = ""
        if self._rows.holder:
            self._restore_ledger()
        self._redeclare()

    def _restore_ledger(self) -> None:
        """Restore the identity in an empty server before a new process creates another one."""
        try:
            self._rows.ledger.restore()
        except exceptions.LedgerFailure as error:
            LOG.debug("%s", error)

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        """Acknowledge messages, in one step for each consumer name.

        Messages with out-of-line bodies need further steps, one for each queue.
        """
        if self._closed or self._client.broken:
            return False
        fields: dict[str, list[str]] = {}
        large: dict[tuple[str, str], list[str]] = {}
        for message in deliveries:
            consumer, number, _ = message.token
            if "@" in number:
                large.setdefault((consumer, message.queue), []).append(number)
            else:
                fields.setdefault(consumer, []).append(f"{message.queue} {number}")
        count = 0
        for consumer, names in fields.items():
            count += self._client.call("HDEL", f"{self.place.prefix}h:{consumer}", *names)
        for (consumer, queue), numbers in large.items():
            for part in redis_link.portions(numbers):
                count += self._run(redis_scripts.requeue(consumer, queue, part, is_refused=True))
        return count == len(deliveries)

    def refuse(self, delivery: Delivery) -> None:
        if not (self._closed or self._client.broken):
            consumer, number, _ = delivery.token
            self._run(
                redis_scripts.requeue(
                    consumer, delivery.queue, [number], is_delivered=False, is_refused=True
                )
            )

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        if not delivered:
            self._takes.mark_undelivered(delivery)
        if self._client.broken:
            return  # Closing this connection requeues all its messages.
        consumer, number, _ = delivery.token
        try:
            self._run(redis_scripts.requeue(consumer, delivery.queue, [number], delivered))
            self._takes.mark_requeued(delivery)
        except (*LOST, exceptions.TransportFailure):
            if delivered:
                raise

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Wait for messages, and take them when the wait ends in the server.

        If this process was killed, the server takes nothing, because the connection is closed. If
        it is frozen, one take follows within `POLL_SECONDS`.
        """
        if len(queues) < len(self._watched_queues) and self._waiting.pause(
            min(_NO_CAPACITY_PAUSE_SECONDS, timeout or _NO_CAPACITY_PAUSE_SECONDS)
        ):
            return  # A consumer has capacity again.
        consumer = self._consumer_name or self._join()
        then = self._take_then if queues else None
        self._process_wait(self._waiting.wait(timeout, consumer, queues, then), queues)

    def _take_then(self) -> Step[list[TakenEntry] | None]:
        groups = [(each.reserve(), each.queues) for each in self.consumers if each.queues]
        self._awaited = TakeOrder(self._begin_take(groups), time.monotonic())
        return redis_scripts.take(self._awaited.take)

    def _process_wait(self, result: WaitResult, queues: Sequence[str]) -> None:
        self._must_poll = self._must_poll or result.must_poll
        for entries in result.answers:
            assert self._awaited is not None
            self._takes.end(self._awaited.take.number)
            for entry in entries or ():
                self._prefetched.add(self._taken(*self._awaited, entry))
            if entries is None:
                self._redeclare_after_loss()
            self._must_poll = self._must_poll or entries != []
        if result.notified_queue and result.notified_queue not in queues:
            self._run(redis_scripts.notify(result.notified_queue))

    def _recall(self) -> None:
        if self._waiting.takes:
            self._process_wait(self._waiting.recall(), ())

    def nudge(self) -> None:
        # Without a poll: the next wait ends at once if there are messages.
        self._waiting.nudge()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.close()
        if self._consumer_name or self._queues:
            self._leave()
        self._client.close()

    def _leave(self) -> None:
        """Requeue unacknowledged messages and remove unused keys. Never raises."""
        departure = redis_scripts.leave(self._consumer_name, self._takes.undelivered())
        second_client = Client(self.place.with_timeouts(1.0, 1.0), exceptions.TransportFailure)
        for client in self._client, second_client:
            try:
                client.run(departure)
                break
            except (*LOST, exceptions.TransportFailure) as error:
                LOG.debug("%s did not receive the end of a consumer: %s", self.place.shown, error)
        else:
            _unsent_leaves.setdefault(self.place, []).append(departure)
        second_client.close()

    def __del__(self) -> None:
        # Closes a connection that was not released. Partly initialized objects have no `_closed`.
        # Nothing is sent, because the server may be unreachable; others notice the silence.
        if not getattr(self, "_closed", True):
            self._closed = True
            self._waiting.close()
            self._client.close()
