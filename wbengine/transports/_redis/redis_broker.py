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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from redis import exceptions as errors

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._redis.lua_scripts import Step
from wbengine._text import data_formats
from wbengine.backoff import Backoff
from wbengine.transports import _encoding, _ledger
from wbengine.transports._broker import MAX_READY, Broker, Consumer, Delivery, Finish, Frame
from wbengine.transports._ledger import Opening, RowAccess
from wbengine.transports._redis import redis_link, redis_scripts
from wbengine.transports._redis.redis_link import LOST, BlockingWait, Link, Place
from wbengine.transports._redis.redis_scripts import Binding, DeclaredQueue, Take, TakenEntry
from wbengine.transports._routing import Routes

__all__ = ["RedisBroker"]

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Interval at which a connection refreshes its keys and requeues messages of dead consumers.
_SWEEP_SECONDS: Final = 2.0
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


#: Departures of consumers while Redis was unreachable. The next connection sends them first.
_unsent_leaves: Final[dict[Place, list[Step[bool]]]] = {}


class StartedTake(NamedTuple):
    """A take, its start on the monotonic clock, and the consumers of its groups, if it waits."""

    take: Take
    at: float
    consumers: Sequence[Consumer] = ()


def _name(delivery: Delivery) -> str:
    _, number, take = delivery.token
    return f"{take}:{number}"


def _field(delivery: Delivery) -> str:
    """Return the name of a message among those of its consumer."""
    return f"{delivery.queue} {delivery.token[1]}"


class RedisBroker(Broker):
    """One connection to a part of a Redis.

    If the server loses data, the connection repeats its declarations.
    """

    batch = _MAX_MESSAGES_PER_BATCH
    labels = True
    recoverable_connection_errors = LOST

    def __init__(self, place: Place, rows: RowAccess, dead_after: float) -> None:
        """Connect.

        :raises OSError: or another exception of `LOST`, if the server cannot be reached.
        :raises TransportFailure: if another release wrote the keys in a format that is not read.
        """
        super().__init__()
        self.place = place
        self._rows = rows
        greet = rows.ledger.greet if rows.ledger is not None else None
        self._link = Link(place, greet=greet)
        self._run = self._link.run
        # Declarations to repeat, and the id of the data that contains the first one.
        self._data_id = ""
        self._queues: dict[str, bool] = {}
        self._bindings: dict[Binding, None] = {}
        self._dead_after = dead_after
        self._consumer_name = ""
        self._waiting: BlockingWait[list[TakenEntry] | None] = BlockingWait(
            place,
            self._begin_wait,
            lambda: self._run(redis_scripts.end_wait(self._consumer_name)),
            greet,
        )
        self._awaited: StartedTake
        self._take_numbers = itertools.count(1)
        # `TAKE` for a take without a reply, or `TAKE:NUMBER` for a message that was taken but not
        # delivered. When the consumer leaves, they are requeued as if they had not been taken.
        self._undelivered: set[str] = set()
        # Makes the names of out-of-line bodies unique across processes.
        self._id, self._bodies = uuid.uuid4().hex, itertools.count()
        self._missed = False
        self._must_poll = True
        self._next_sweep_at = 0.0
        self._watched_queues: Counter[str] = Counter()
        # Number of recent redeclarations, and the time of the last one.
        self._recent_losses, self._declared_at = 0, -math.inf
        self._closed = False
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        written = self._link.call("HGET", f"{self.place.prefix}m", "f")
        if written is not None:
            data_formats.REDIS.check(self.place.shown, int(written), exceptions.TransportFailure)
        self._routes = self._read_routes()
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
        return int(self._link.call("ZCARD", f"{self.place.prefix}q:{queue}"))

    def silent_queues(self) -> frozenset[str]:
        seconds, micros = self._link.call("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        silent_since = now - redis_scripts.GONE_AFTER_SECONDS * 1000
        # After a pause in which no process swept, owners first get time to report.
        last, since = self._link.call("HMGET", f"{self.place.prefix}m", "t", "since")
        if int(last or 0) < silent_since or int(since or now) > silent_since:
            return frozenset()
        silent = self._link.call("ZRANGEBYSCORE", f"{self.place.prefix}own", "-inf", silent_since)
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
        return redis_scripts.read_bindings(self._link.call("HKEYS", f"{self.place.prefix}b"))

    def _read_routes(self) -> Routes:
        # A version that is older than the bindings is refused when it is used.
        data_id, version = self._link.call("HMGET", f"{self.place.prefix}m", "id", "v")
        names = self._link.call("HKEYS", f"{self.place.prefix}b")
        return redis_scripts.read_routes(b"%b:%b" % (data_id or b"", version or b""), names)

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        """Publish messages in one step, with one round trip unless the routing has changed."""
        return map(bool, self.publish_with(redis_scripts.publish, frames))

    def open_and_publish(self, rows: Sequence[Opening], frames: Sequence[Frame]) -> Sequence[int]:
        # Rows are opened in the session of the ledger, which outlives this connection.
        counts: Sequence[int] = self._rows.ledger.open_and_publish(
            rows, lambda script: (self.publish_with(script, frames), False)
        )
        return counts

    def _finish(
        self, batch: Sequence[Finish], take_order: StartedTake | None
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
        return finished, [self._taken(take_order, entry) for entry in entries]

    def prepare_take(self, max_messages: int, queues: Sequence[str]) -> StartedTake | None:
        return self._begin_take(((max_messages, queues),)) if self._consumer_name else None

    def confirm_taken(self, take_order: StartedTake, undelivered: Sequence[Delivery]) -> None:
        self._undelivered.update(map(_name, undelivered))
        self._end_take(take_order)

    def fail_taken(self, take_order: StartedTake) -> None:
        self._missed = True
        self.nudge()

    def publish_with(
        self,
        script: Callable[[redis_scripts.RoutedBatch], Step[T | Routes | None]],
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
                is_bound = frame.exchange != ""
                queues = (
                    routes.find(frame.exchange, frame.routing_key)
                    if is_bound
                    else (frame.routing_key,)
                )
                if len(body) < _LARGE_BODY_BYTES or len(queues) != 1 or inline_bodies:
                    head += body
                else:
                    name = f"{self._id}{next(self._bodies):x}"
                    body_key = f"{self.place.prefix}b:{name}"
                    stores.append(("SET", body_key, body, "PX", _UNUSED_BODY_MILLISECONDS))
                routed.append(
                    redis_scripts.RoutedMessage(frame.priority, head, name, queues, is_bound)
                )
            batch = redis_scripts.RoutedBatch(str(routes.version), routed)
            result = self._run(script(batch), stores)
            if isinstance(result, Routes):
                self._routes = result
            elif result is None:  # A body could not be stored, or expired before the script ran.
                inline_bodies = True
            else:
                return result

    def watch(self, queue: str) -> None:
        self._watched_queues[queue] += 1
        self._must_poll = True

    def unwatch(self, queue: str) -> None:
        self._watched_queues -= Counter((queue,))  # This removes counts of zero.
        if not self._link.broken:
            self._recall()

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
        if self._must_poll:
            self._recall()
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
        # If more messages are waiting, there is a wake-up.
        self._must_poll = False
        while True:
            if not self._consumer_name:
                self._join()
            take = self._begin_take(groups)
            try:
                entries = self._run(redis_scripts.take(take.take))
            except exceptions.TransportFailure:  # Nothing was taken.
                self._end_take(take)
                raise
            self._end_take(take)
            if entries is not None:
                # A batch may be full, also of bytes. A caller that cannot wait receives the rest.
                self._must_poll = len(entries) >= _MAX_MESSAGES_PER_BATCH
                taken = []
                for entry in entries:
                    delivery = self._taken(take, entry)
                    taken.append((entry.group, delivery))
                    self._must_poll |= delivery.body_location != ""
                return taken
            self._redeclare_after_loss()

    def _begin_take(
        self, groups: Sequence[tuple[int, Sequence[str]]], consumers: Sequence[Consumer] = ()
    ) -> StartedTake:
        number = str(next(self._take_numbers))
        self._undelivered.add(number)
        holder = self._rows.holder
        digest = self._rows.ledger.digest if holder else ""
        take = Take(self._consumer_name, number, holder, digest, groups)
        # Read the time before the call: its reply may arrive after its claims have expired.
        return StartedTake(take, time.monotonic(), consumers)

    def _end_take(self, take: StartedTake) -> None:
        self._undelivered.discard(take.take.number)

    def _taken(self, take: StartedTake, entry: TakenEntry) -> Delivery:
        label, data = _encoding.split(entry.data)
        token = take.take.consumer, entry.number, take.take.number
        delivery = Delivery(entry.queue, token, data, entry.number.endswith("r"))
        if len(entry.number) > 32:
            delivery.body_location = re.split("[@&r]", entry.number)[1]
        if entry.claim is not None:
            delivery.claim, count = entry.claim
            self._rows.ledger.note_count(count)
            delivery.taken_at, delivery.label = take.at, label
        return delivery

    def fetch(self, deliveries: Iterable[Delivery]) -> None:
        incomplete = [message for message in deliveries if message.body_location]
        if not incomplete:
            return
        keys = [f"{self.place.prefix}b:{message.body_location}" for message in incomplete]
        for message, body in zip(incomplete, self._link.call("MGET", *keys), strict=True):
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
            # In an empty server, before a new process creates another identity of the ledger.
            try:
                self._rows.ledger.restore()
            except exceptions.LedgerFailure as error:
                LOG.debug("%s", error)
        queues = [DeclaredQueue(*queue) for queue in tuple(self._queues.items())]
        self._declare(queues, tuple(self._bindings))

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        """Acknowledge messages, in one step for each consumer name.

        Messages with out-of-line bodies need another step.
        """
        if self._closed or self._link.broken:
            return False
        fields: dict[tuple[str, bool], list[str]] = {}
        for message in deliveries:
            is_large = "@" in message.token[1]
            fields.setdefault((message.token[0], is_large), []).append(_field(message))
        count = 0
        for (consumer, is_large), names in fields.items():
            for part in _ledger.batches(names, redis_link.MAX_SCRIPT_VALUES):
                if is_large:
                    count += self._run(redis_scripts.requeue(consumer, part, is_refused=True))
                else:
                    count += self._link.call("HDEL", f"{self.place.prefix}h:{consumer}", *part)
        return count == len(deliveries)

    def refuse(self, delivery: Delivery) -> None:
        if not (self._closed or self._link.broken):
            self._run(
                redis_scripts.requeue(
                    delivery.token[0], [_field(delivery)], is_delivered=False, is_refused=True
                )
            )

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        if not delivered:
            self._undelivered.add(_name(delivery))
        if self._link.broken:
            return  # Closing this connection requeues all its messages.
        try:
            self._run(redis_scripts.requeue(delivery.token[0], [_field(delivery)], delivered))
            self._undelivered.discard(_name(delivery))
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
        for entries in self._waiting.wait(timeout, consumer, queues):
            self._end_wait(entries)

    def _begin_wait(
        self, queues: Sequence[str]
    ) -> tuple[Sequence[str], Step[list[TakenEntry] | None]]:
        consumers = [each for each in self.consumers if each.queues]
        groups = [(each.reserve(), each.queues) for each in consumers]
        self._awaited = self._begin_take(groups, consumers)
        # An order may have reserved their capacity. A wake-up must reach a consumer that takes.
        full = {queue for capacity, of_group in groups if not capacity for queue in of_group}
        awaited_queues = [queue for queue in queues if queue not in full]
        return awaited_queues, redis_scripts.take(self._awaited.take)

    def _end_wait(self, entries: Sequence[TakenEntry] | None) -> None:
        self._end_take(self._awaited)
        consumers = self._awaited.consumers
        for entry in entries or ():
            consumer, delivery = consumers[entry.group], self._taken(self._awaited, entry)
            if entry.queue in consumer.queues and consumer.has_capacity:
                consumer.ready.append(delivery)
            else:  # The queue was cancelled or the limit reduced during the wait.
                self.requeue(delivery, delivered=False)
        for consumer in consumers:
            consumer.credit.requested = 0
        if entries is None:
            self._redeclare_after_loss()
            self._must_poll = True

    def _recall(self) -> None:
        if self._waiting.is_blocked:
            self._end_wait(self._waiting.recall())

    def nudge(self) -> None:
        # Without a poll: the next wait ends at once if there are messages.
        self._waiting.nudge()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.release()
        if self._consumer_name or self._queues:
            self._leave()
        self._link.close()

    def _leave(self) -> None:
        """Requeue unacknowledged messages and remove unused keys. Never raises."""
        departure = redis_scripts.leave(
            self._consumer_name, tuple(self._undelivered), self._rows.holder
        )
        second_link = Link(self.place.with_timeouts(1.0, 1.0))
        for link in self._link, second_link:
            try:
                link.run(departure)
                break
            except (*LOST, exceptions.TransportFailure) as error:
                LOG.debug("%s did not receive the end of a consumer: %s", self.place.shown, error)
        else:
            _unsent_leaves.setdefault(self.place, []).append(departure)
        second_link.close()

    def __del__(self) -> None:
        # Closes a connection that was not released. Partly initialized objects have no `_closed`.
        # Nothing is sent, because the server may be unreachable; others notice the silence.
        if not getattr(self, "_closed", True):
            self._closed = True
            self._waiting.release()
            self._link.close()
