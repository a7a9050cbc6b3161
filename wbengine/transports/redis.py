"""Transport through Redis: `redis://HOST/DB`, `rediss://HOST/DB`.

Options: :ref:`transport-options`.

Each step is one atomic script. If a process is killed, each message is either in its queue or
assigned to its consumer. Consumers report at least once a second. If a consumer is silent for
`dead_after` seconds on the server's clock, its messages are requeued in their old place and marked
as redelivered. Messages may remain unacknowledged for any time.
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
from wbengine._lua import Script
from wbengine.backoff import Backoff
from wbengine.transports import _encoding, _redis_link, _redis_scripts, _routing
from wbengine.transports._redis_link import LOST, OPTIONS, Client, Link, Place
from wbengine.transports._redis_scripts import SCRIPTS
from wbengine.transports._redis_wait import BlockingWait, WaitResult
from wbengine.transports.broker import Broker, LaidOut, TakenMessage

__all__ = ["OPTIONS", "RedisBroker", "place"]

LOG = logging.getLogger(__name__)


#: Interval at which a connection refreshes its keys and requeues messages of dead consumers.
_TEND_SECONDS: Final = 2.0
#: Minimum of `dead_after`: consumers report each second, and one report may be late.
_MIN_DEAD_AFTER_SECONDS: Final = 1.5
#: Pause while some consumers have no capacity.
_NO_CAPACITY_PAUSE_SECONDS: Final = 0.005
#: Minimum interval between two reports of a consumer that takes messages.
_REPORT_SECONDS: Final = 0.2
_MAX_MESSAGES_PER_BATCH: Final = 64
#: Pauses between two redeclarations if data is lost repeatedly.
_REDECLARE_BACKOFF: Final = Backoff(0.05, max_delay=2.0, jitter=0.05)
_RECENT_LOSS_SECONDS: Final = 10.0
#: Time after which an out-of-line body expires unless a script uses it.
_UNUSED_BODY_MILLISECONDS: Final = 60_000
#: Upper bound that `refresh` returns if messages may be available.
_MAX_READY: Final = 1000
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


LeaveArguments = tuple[str, str]

#: Arguments of the script `leave` for consumers that left while Redis was unreachable. The next
#: connection sends them first.
_unsent_leaves: Final[dict[Place, list[LeaveArguments]]] = {}


class TakeOrder(NamedTuple):
    """A take in the same step as replies: consumer, number, monotonic start time, arguments."""

    who: str
    number: str
    at: float
    arguments: tuple[Any, ...]


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

    def end(self, number: str, undelivered: Sequence[TakenMessage] = ()) -> None:
        """Record the reply to a take. Its messages are delivered, except `undelivered`."""
        for taken in undelivered:
            self.mark_undelivered(taken)
        self._undelivered.discard(number)

    def mark_undelivered(self, taken: TakenMessage) -> None:
        self._undelivered.add(_name(taken))

    def mark_requeued(self, taken: TakenMessage) -> None:
        self._undelivered.discard(_name(taken))

    def undelivered(self) -> str:
        """Return the argument of the script `leave`."""
        return " ".join(tuple(self._undelivered))


def _name(taken: TakenMessage) -> str:
    _, number, take = taken.token
    return f"{take}:{number}"


class Routes:
    """The routing tables and their version. Immutable."""

    __slots__ = ("_tables", "version")

    def __init__(
        self, version: str = ":", tables: Mapping[str, _routing.Table] | None = None
    ) -> None:
        self.version = version
        self._tables = tables or {}

    @classmethod
    def read(cls, reply: Any) -> Routes:
        """Convert the result of the script `read_routes`."""
        bound: dict[str, list[tuple[str, str]]] = {}
        for queue, exchange, key in bindings(reply):
            bound.setdefault(exchange, []).append((key, queue))
        tables = {exchange: _routing.Table(pairs) for exchange, pairs in bound.items()}
        return cls(reply[0].decode(), tables)

    def of(self, exchange: str, key: str) -> Sequence[str]:
        """Return the queues for a key. If there is no exchange, the key is a queue."""
        if not exchange:
            return (key,)
        table = self._tables.get(exchange)
        return () if table is None else table.route(key)


def bindings(reply: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (queue, exchange, routing key) from the result of the script `read_routes`."""
    for binding in reply[2]:
        exchange, queue, key = binding.decode("utf-8", "surrogateescape").split("\0", 2)
        yield queue, exchange, key


class Prefetched:
    """Messages that arrived with the end of a wait, until consumers have capacity.

    For one thread.
    """

    def __init__(self) -> None:
        self._taken: list[TakenMessage] = []

    def __bool__(self) -> bool:
        return bool(self._taken)

    def add(self, taken: TakenMessage) -> None:
        self._taken.append(taken)

    def hand_over(
        self, groups: Sequence[tuple[int, Sequence[str]]]
    ) -> list[tuple[int, TakenMessage]]:
        """Remove messages for each group, up to its limit; return them with the group's index."""
        places = {queue: group for group, (_, queues) in enumerate(groups) for queue in queues}
        capacities = [max_messages for max_messages, _ in groups]
        messages, self._taken, prefetched = [], [], self._taken
        for taken in prefetched:
            group = places.get(taken.queue)
            if group is not None and capacities[group] > 0:
                capacities[group] -= 1
                messages.append((group, taken))
            else:
                self._taken.append(taken)
        return messages

    def leave(self, consumed: Container[str]) -> list[TakenMessage]:
        """Remove and return the messages of queues that are no longer consumed."""
        removed = [taken for taken in self._taken if taken.queue not in consumed]
        self._taken = [taken for taken in self._taken if taken.queue in consumed]
        return removed


class RedisClaims(Protocol):
    """Claims of requests in the ledger of the same Redis, which the scripts for requests make."""

    holder: str
    #: Milliseconds to keep results; '': no limit.
    ttl: int | str

    @property
    def digest(self) -> str:
        """Identifier of the ledger."""

    def greet(self, link: Link) -> None:
        """Prepare a new connection for claims."""

    def read(self, claim_reply: Sequence[Any]) -> Any:
        """Convert [verdict, epoch, holder, result, count] for `TakenMessage.claim`."""

    def restore(self) -> None:
        """Check the identity of the ledger after a possible loss of data. Never raises."""


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
        claims: RedisClaims | None = None,
        dead_after: float = _redis_scripts.DEAD_AFTER_SECONDS,
    ) -> None:
        super().__init__()
        self.place = place
        greet = claims.greet if claims is not None else None
        self._client = Client(place, exceptions.TransportFailure, greet)
        self._run = self._client.run
        # Declarations to repeat, and the id of the data that contains the first one.
        self._data_id = ""
        self._exchanges: dict[str, None] = {}
        self._queues: dict[str, bool] = {}
        self._bindings: dict[str, None] = {}
        self._claims = claims
        self._dead_after = dead_after
        self._consumer_name = ""
        self._waiting = BlockingWait(
            place, lambda: self._run(SCRIPTS["end_wait"], self._consumer_name)
        )
        self._takes = Takes()
        # Makes the names of out-of-line bodies unique across processes.
        self._id, self._bodies = uuid.uuid4().hex, itertools.count()
        self._missed = False
        self._must_poll = True
        # Messages that arrive at the end of a wait, and the number of their take.
        self._prefetched = Prefetched()
        self._awaited_take = ""
        self._next_tend_at = 0.0
        self._next_report_at = 0.0
        self._watched_queues: Counter[str] = Counter()
        self._routes = Routes()
        # Number of recent redeclarations, and the time of the last one.
        self._recent_losses, self._declared_at = 0, -math.inf
        self._closed = False

    @classmethod
    def reach(cls, place: Place, options: Mapping[str, Any]) -> RedisBroker:
        """Connect.

        :raises OSError: or another exception of `LOST`, if the server cannot be reached.
        """
        dead_after = options.get("dead_after", _redis_scripts.DEAD_AFTER_SECONDS)
        broker = cls(place, options.get("claims"), dead_after)
        try:
            broker._reach()
        except BaseException:
            broker.close()
            raise
        return broker

    def _reach(self) -> None:
        self._routes = Routes.read(self._run(SCRIPTS["read_routes"]))
        for departure in tuple(_unsent_leaves.get(self.place, ())):
            self._run(SCRIPTS["leave"], *departure)
            with contextlib.suppress(ValueError):  # Another thread sent it, too.
                _unsent_leaves[self.place].remove(departure)

    def declare_exchange(self, name: str) -> None:
        self._exchanges[_names.check_label("exchange", name)] = None
        self._declare(SCRIPTS["declare_exchange"], name, "topic")

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        _names.check_label("queue", queue)
        self._queues[queue] = owned or self._queues.get(queue, False)
        self._declare(SCRIPTS["declare_queue"], queue, int(owned))

    def delete_queue(self, queue: str) -> int:
        self._queues.pop(queue, None)
        for binding in [each for each in tuple(self._bindings) if each.split("\0")[1] == queue]:
            self._bindings.pop(binding, None)
        return int(self._run(SCRIPTS["delete_queue"], queue))

    def _declare(self, script: Script, *args: Any) -> None:
        data_id = self._run(script, uuid.uuid4().hex, *args).decode()
        self._data_id = self._data_id or data_id

    def purge(self, queue: str) -> int:
        return int(self._run(SCRIPTS["purge_queue"], queue))

    def size(self, queue: str) -> int:
        return int(self._run(SCRIPTS["count_messages"], queue))

    def bind(self, exchange: str, key: str, queue: str) -> None:
        binding = f"{exchange}\0{queue}\0{key}"
        self._bindings[binding] = None
        self._run(SCRIPTS["bind"], binding)

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        binding = f"{exchange}\0{queue}\0{key}"
        self._bindings.pop(binding, None)
        self._run(SCRIPTS["unbind"], binding)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return bindings(self._run(SCRIPTS["read_routes"]))

    def _redeclare(self) -> None:
        for name in tuple(self._exchanges):
            self.declare_exchange(name)
        for queue, owned in tuple(self._queues.items()):
            self.declare_queue(queue, owned=owned)
        for binding in tuple(self._bindings):
            self._run(SCRIPTS["bind"], binding)

    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        """Publish messages in one step, with one round trip unless the routing has changed."""
        counts = self._routed(SCRIPTS["publish"], [((), message) for message in messages])
        return map(bool, counts)

    def open_and_put(
        self, first: tuple[Any, ...], messages: Sequence[tuple[tuple[Any, ...], LaidOut]]
    ) -> Sequence[Any]:
        """Publish requests and create their rows in the same step (see the script)."""
        return self._routed(SCRIPTS["open_and_publish"], messages, *first)

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int], TakenMessage, LaidOut]],
        take_order: TakeOrder | None = None,
    ) -> tuple[Sequence[int], Sequence[TakenMessage]]:
        assert self._claims is not None
        rows = [
            ((*row, taken.token[0], taken.queue, taken.token[1]), message)
            for row, taken, message in ended
        ]
        take = () if take_order is None else take_order.arguments
        *counts, messages_taken = self._routed(
            SCRIPTS["finish_requests"],
            rows,
            self._claims.holder,
            self._claims.ttl,
            len(take),
            *take,
        )
        # None: the consumer is unknown, which its next wait detects.
        if take_order is None or messages_taken is None:
            return counts, ()
        return counts, [
            self._taken(take_order.who, take_order.number, take_order.at, *rest)
            for _, *rest in messages_taken
        ]

    def prepare_take(self, max_messages: int, queues: Sequence[str]) -> TakeOrder | None:
        if not self._consumer_name:
            return None
        at, number = time.monotonic(), self._takes.begin()
        arguments = *self._take_arguments(number, at), max_messages, len(queues), *queues
        return TakeOrder(self._consumer_name, number, at, arguments)

    def confirm_taken(self, take_order: TakeOrder, undelivered: Sequence[TakenMessage]) -> None:
        self._takes.end(take_order.number, undelivered)

    def fail_taken(self, take_order: TakeOrder) -> None:
        self._missed = True
        self.nudge()

    def _routed(
        self,
        script: Script,
        messages: Sequence[tuple[tuple[Any, ...], LaidOut]],
        *first: Any,
    ) -> Sequence[Any]:
        inline_bodies = False
        while True:
            routes = self._routes
            arguments: list[Any] = []
            bodies: list[tuple[Any, ...]] = []
            names = ""
            for number, (row_arguments, (exchange, key, priority, head, body)) in enumerate(
                messages
            ):
                queues = routes.of(exchange, key)
                if len(body) < _LARGE_BODY_BYTES or len(queues) != 1 or inline_bodies:
                    head += body
                else:
                    name = f"{self._id}{next(self._bodies):x}"
                    bodies.append(
                        (
                            "SET",
                            f"{self.place.prefix}b:{name}",
                            body,
                            "PX",
                            _UNUSED_BODY_MILLISECONDS,
                        )
                    )
                    names += f"{number}:{name} "
                arguments += *row_arguments, priority, head, len(queues), *queues
            answer: list[Any] | None = self._run(
                script, routes.version, names, *first, *arguments, after=bodies
            )
            if answer is None:  # A body could not be stored, or it expired before the script ran.
                inline_bodies = True
            elif isinstance(answer[0], int):
                return answer
            else:
                self._routes = Routes.read(answer)

    def watch(self, queue: str) -> None:
        self._watched_queues[queue] += 1
        self._must_poll = True

    def unwatch(self, queue: str) -> None:
        self._watched_queues -= Counter((queue,))  # This removes counts of zero.
        if not self._client.broken:
            self._recall()
            for taken in self._prefetched.leave(self._watched_queues):
                self.requeue(taken, delivered=False)

    def refresh(self) -> int:
        if self._missed:
            raise errors.ConnectionError(
                "a reply of Redis was lost; it may have contained requests"
            )
        now = time.monotonic()
        if now >= self._next_tend_at:
            # This interval must be short compared with `dead_after`: after a long pause, the
            # scripts assume an outage of the server in which no consumer could report.
            self._next_tend_at = now + min(_TEND_SECONDS, self._dead_after / 3)
            self._tend()
        return _MAX_READY if self._must_poll else 0

    def _tend(self) -> None:
        owned_queues = [queue for queue, owned in tuple(self._queues.items()) if owned]
        consumed_queues = [queue for queue in self._watched_queues if queue not in owned_queues]
        arguments = (
            self._dead_after,
            self._consumer_name,
            len(owned_queues),
            *owned_queues,
            *consumed_queues,
        )
        dead = self._run(SCRIPTS["tend"], *arguments)
        if dead:
            LOG.info("%s: the messages of %d dead consumers were requeued", self.place.shown, dead)

    def take_many(
        self, groups: Sequence[tuple[int, Sequence[str]]]
    ) -> list[tuple[int, TakenMessage]]:
        self._must_poll = False  # Before taking: a concurrent nudge may set it again.
        self._recall()
        if self._prefetched and (messages := self._prefetched.hand_over(groups)):
            alone = all(self._queues.get(queue) for _, queues in groups for queue in queues)
            self._must_poll = bool(self._prefetched) or not alone
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

    def _take(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, TakenMessage]]:
        limits: list[Any] = []
        for limit, queues in groups:
            limits += limit, len(queues), *queues
        while True:
            consumer = self._consumer_name or self._join()
            # Read the time before the call: its reply may arrive after its claims have expired.
            began, number = time.monotonic(), self._takes.begin()
            try:
                messages = self._run(
                    SCRIPTS["take"], *self._take_arguments(number, began), *limits
                )
            except exceptions.TransportFailure:  # Nothing was taken.
                self._takes.end(number)
                raise
            self._takes.end(number)
            if messages is not None:
                return [
                    (group, self._taken(consumer, number, began, *rest))
                    for group, *rest in messages
                ]
            self._redeclare_after_loss()

    def _take_arguments(self, number: str, now: float) -> tuple[Any, ...]:
        due = now >= self._next_report_at
        if due:
            self._next_report_at = now + _REPORT_SECONDS
        claims = self._claims
        holder, digest = (claims.holder, claims.digest) if claims is not None else ("", "")
        return self._consumer_name, number, holder, digest, int(due)

    def _taken(
        self,
        consumer: str,
        take: str,
        began: float,
        queue: bytes,
        number: bytes,
        data: bytes,
        claim_reply: Any = None,
    ) -> TakenMessage:
        token = consumer, number.decode(), take
        label, data = _encoding.split(data)
        taken = TakenMessage(queue.decode(), token, data, number.endswith(b"r"))
        if len(number) > 32:
            taken.body_location = re.split(b"[@&r]", number)[1]
        if claim_reply is not None and self._claims is not None:
            taken.claim, taken.at = self._claims.read(claim_reply), began
            taken.label = label
        return taken

    def fetch(self, taken: Iterable[TakenMessage]) -> None:
        incomplete = [message for message in taken if message.body_location]
        if not incomplete:
            return
        keys = [f"{self.place.prefix}b:{message.body_location.decode()}" for message in incomplete]
        for message, body in zip(incomplete, self._client.call("MGET", *keys), strict=True):
            message.body, message.body_location = body or b"", b""
            if body is None and "&" in message.token[1]:
                message.data = None

    def _join(self) -> str:
        # Each name is used once, because the messages of a forgotten name were requeued.
        # `_data_id` detects a loss of data before this registration, the name a later loss.
        consumer = uuid.uuid4().hex
        while not self._run(SCRIPTS["join"], consumer, self._data_id):
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
        if self._claims is not None:
            self._claims.restore()
        self._next_report_at = 0.0
        self._redeclare()

    def settle_many(self, taken: Sequence[TakenMessage]) -> bool:
        """Acknowledge messages, in one step for each queue and consumer name."""
        if self._closed or self._client.broken:
            return False
        numbers_by_queue: dict[tuple[str, str], list[str]] = {}
        for message in taken:
            consumer, number, _ = message.token
            numbers_by_queue.setdefault((consumer, message.queue), []).append(number)
        count = 0
        for (consumer, queue), numbers in numbers_by_queue.items():
            for part in _redis_link.portions(numbers):
                count += self._run(SCRIPTS["settle"], consumer, queue, *part)
        return count == len(taken)

    def refuse(self, taken: TakenMessage) -> None:
        if not (self._closed or self._client.broken):
            self._run(SCRIPTS["refuse"], taken.token[0], taken.queue, taken.token[1])

    def requeue(self, taken: TakenMessage, *, delivered: bool = True) -> None:
        if not delivered:
            self._takes.mark_undelivered(taken)
        if self._client.broken:
            return  # Closing this connection requeues all its messages.
        consumer, number, _ = taken.token
        try:
            self._run(SCRIPTS["requeue"], consumer, taken.queue, number, int(delivered))
            self._takes.mark_requeued(taken)
        except (*LOST, exceptions.TransportFailure):
            if delivered:
                raise

    def discard(self, taken: TakenMessage, why: str) -> None:
        self.discards.warn(taken.queue, "a message in queue %s was discarded: %s", taken.queue, why)
        self.refuse(taken)

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Wait for messages.

        If all queues are owned, the wait also takes their messages. It does not take requests from
        shared queues, because this process may be frozen when they arrive.
        """
        if len(queues) < len(self._watched_queues) and self._waiting.pause(
            min(_NO_CAPACITY_PAUSE_SECONDS, timeout or _NO_CAPACITY_PAUSE_SECONDS)
        ):
            self._must_poll = True  # A consumer has capacity again.
            return
        consumer = self._consumer_name or self._join()
        alone = queues and all(map(self._queues.get, queues))
        then = functools.partial(self._take_then, consumer, queues) if alone else None
        self._process_wait(self._waiting.wait(timeout, consumer, queues, then), queues)

    def _take_then(self, consumer: str, queues: Sequence[str]) -> tuple[Any, ...]:
        self._awaited_take = number = self._takes.begin()
        arguments = consumer, number, "", "", 1, _MAX_MESSAGES_PER_BATCH, len(queues), *queues
        return "EVALSHA", SCRIPTS["take"].digest, 1, self.place.prefix, *arguments

    def _process_wait(self, result: WaitResult, queues: Sequence[str]) -> None:
        self._must_poll = self._must_poll or result.must_poll
        for messages in result.answers:
            self._takes.end(self._awaited_take)
            for _, *rest in messages or ():
                self._prefetched.add(
                    self._taken(self._consumer_name, self._awaited_take, 0.0, *rest)
                )
            if messages is None:
                self._redeclare_after_loss()
            self._must_poll = self._must_poll or messages != []
        if result.notified_queue and result.notified_queue not in queues:
            self._run(SCRIPTS["notify"], result.notified_queue)

    def _recall(self) -> None:
        if self._waiting.takes:
            self._process_wait(self._waiting.recall(), ())

    def nudge(self) -> None:
        self._must_poll = True
        self._waiting.nudge()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.close()
        if self._consumer_name or self._exchanges or self._queues:
            self._leave()
        self._client.close()

    def _leave(self) -> None:
        """Requeue unacknowledged messages and remove unused keys. Never raises."""
        departure = (self._consumer_name, self._takes.undelivered())
        second_client = Client(self.place.with_timeouts(1.0, 1.0), exceptions.TransportFailure)
        for client in self._client, second_client:
            try:
                client.run(SCRIPTS["leave"], *departure)
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
