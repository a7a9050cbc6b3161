"""Common parts of the transports through a database: `postgresql://` and `mysql://`.

Options: :ref:`transport-options`.

Messages are rows. A consumer takes messages with `SKIP LOCKED`, and claims the rows of their
requests in the same transaction. Consumers report once a second. If one is silent for `dead_after`
seconds on the server's clock, its messages are requeued in their old place and marked as
redelivered. Those that hold claims stay, until their rows have changed or their worker has sent no
heartbeat for ten minutes: a worker that reconnects undoes the claims of messages that it did not
receive. After a failover to a server whose clock is behind, last reports are in the future, and
count like old ones. Messages may remain unacknowledged for any time.

A database contributes a `Session`, and the module of its statements (`SQLBroker.sql`). Each of them
is executed by `Session.run` as one transaction. Both modules of statements describe them, and use
the same names, values and results. A consumer that waits polls, unless its database can notify it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.transports import _encoding, _routing
from wbengine.transports._broker import (
    MAX_BATCH_BYTES,
    MAX_READY,
    Broker,
    Delivery,
    Finish,
    Frame,
)
from wbengine.transports._ledger import Opening, RowAccess
from wbengine.transports._nudge import Nudge
from wbengine.transports._sql.sql_session import Place, Session, Statement

__all__ = ["SQLBroker", "Take", "columns"]

LOG = logging.getLogger(__name__)

#: The queues of each message.
Routed = Sequence[Sequence[str]]

#: Silence of its owner after which an owned queue is reported, and after which it is deleted.
_SILENT_AFTER_SECONDS: Final = 15.0
_GONE_AFTER_SECONDS: Final = 600.0
#: Silence after which also the messages that a consumer claimed are requeued.
_CLAIMS_GONE_AFTER_SECONDS: Final = 600.0
#: Time after which an unused queue is deleted with its messages.
_STALE_AFTER_SECONDS: Final = 7 * 24 * 3600.0
_STALE_SWEEP_SECONDS: Final = 3600.0
#: Maximum interval of reports, and of polls: a notification is lost if its receiver dies.
_REPORT_SECONDS: Final = 1.0
#: First interval of polls if notifications are not available. It grows while no messages arrive.
_FIRST_POLL_SECONDS: Final = 0.02
#: Interval of the search for dead consumers, and mean interval of the search for unused queues.
#: After an outage, owners of queues reconnect within the latter.
_SWEEP_SECONDS: Final = 2.0
_QUEUE_SWEEP_SECONDS: Final = 60.0
#: Token that identifies no message: the request of a requeued message is finished without it. No
#: consumer has this name, and in MySQL that of waiting messages is ''.
_REQUEUED: Final = ("-", 0)

#: Departures of consumers while the server was unavailable. The next connection sends them first.
_unsent_departures: Final[dict[Place, list[dict[str, Any]]]] = {}


@dataclass(slots=True)
class Take:
    """A take: the values of its statement, and its start on the monotonic clock.

    `has_more`: whether more messages may have been waiting.
    """

    values: dict[str, Any]
    began: float
    has_more: bool = False


class SQLBroker(Broker):
    """One connection to the queues in a database.

    :raises OperationalError: of the driver, if the server cannot be reached.
    :raises TransportFailure: if it refuses, or if the tables have another format.
    """

    batch = 64
    labels = True
    session_type: ClassVar[type[Session]]
    #: The module of the statements.
    sql: ClassVar[Any]

    def __init__(self, place: Place, rows: RowAccess, dead_after: float) -> None:
        super().__init__()
        self._closed = True
        self.place = place
        self._session = self.session_type(place)
        self._run = self._session.run
        self._nudge = Nudge()
        self._closed = False
        for departure in tuple(_unsent_departures.get(place, ())):
            self._send_departure(self._session, departure)
            with contextlib.suppress(ValueError):  # Another thread sent it, too.
                _unsent_departures[place].remove(departure)
        self._rows = rows
        self._dead_after = dead_after
        ((self._digest,),) = self._run(self.sql.DIGEST)
        self._routes = self._read_routes()
        #: Name of this consumer; '' before it is registered.
        self._name = ""
        # All names, because former ones may still have messages.
        self._names: list[str] = []
        self._owned: set[str] = set()
        self._watched_queues: Counter[str] = Counter()
        self._take_numbers = itertools.count(1)
        self._missed = False
        # Takes without a reply, and messages that were taken but not delivered.
        self._unanswered: set[int] = set()
        self._undelivered: set[int] = set()
        #: Watched queues that may contain messages.
        self._nonempty: set[str] = set()
        self._next_report_at = self._next_poll_at = 0.0
        self._next_sweep_at = self._next_queue_sweep_at = 0.0
        self._poll_pause = _FIRST_POLL_SECONDS if self._session.is_polling else _REPORT_SECONDS
        self._settled_count = 0

    @property
    def _failures(self) -> tuple[type[BaseException], ...]:
        return (*self.recoverable_connection_errors, exceptions.TransportFailure)

    # Exchanges, queues and bindings.

    def declare_exchange(self, name: str) -> None:
        object_names.check_label("exchange", name)  # Binding a queue creates it.

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        object_names.check_label("queue", queue)
        if owned:
            self._owned.add(queue)
        self._run(self.sql.DECLARE_QUEUE, {"queue": queue, "owned": owned})

    def delete_queue(self, queue: str) -> int:
        self._owned.discard(queue)
        ((count,),) = self._run(self.sql.DELETE_QUEUE, {"queue": queue})
        return int(count)

    def purge(self, queue: str) -> int:
        ((count,),) = self._run(self.sql.PURGE, {"queue": object_names.check_label("queue", queue)})
        return int(count)

    def size(self, queue: str) -> int:
        ((count,),) = self._run(self.sql.SIZE, {"queue": queue})
        return int(count)

    def silent_queues(self) -> frozenset[str]:
        rows = self._run(self.sql.SILENT_QUEUES, {"seconds": _SILENT_AFTER_SECONDS})
        return frozenset(name for (name,) in rows)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        self._run(self.sql.BIND, {"exchange": exchange, "key": key, "queue": queue})

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        self._run(self.sql.UNBIND, {"exchange": exchange, "key": key, "queue": queue})

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return self._run(self.sql.BINDINGS)

    def _read_routes(self) -> _routing.Routes:
        # The version is read first: a change after this is detected later.
        ((version,),) = self._run(self.sql.ROUTES)
        queues = [name for (name,) in self._run(self.sql.QUEUES)]
        return _routing.Routes(version, queues, self._run(self.sql.BINDINGS))

    def _is_changed(self, routes: _routing.Routes) -> bool:
        """Return whether another process changed the routing."""
        ((version,),) = self._run(self.sql.ROUTES)
        if version == routes.version:
            return False
        self._routes = self._read_routes()
        return True

    # Publishing.

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        rows = []
        for frame in frames:
            label, head = _encoding.split(frame.head)
            row = _encoding.row_of(label, self._digest) if label else None
            rows.append((9 - frame.priority, *(row or (None, None)), head + frame.body))

        def work(routes: Routed) -> Statement:
            messages = [(q, *row) for row, queues in zip(rows, routes, strict=True) for q in queues]
            names = "queues", "places", "ids", "epochs", "data"
            return self.sql.PUBLISH, columns(names, messages)

        _, routes, _ = self._send(frames, work)
        return map(bool, routes)

    def open_and_publish(self, rows: Sequence[Opening], frames: Sequence[Frame]) -> list[int]:
        given = [
            (
                row.id, row.epoch, row.tried is not None, *row.fence,
                _encoding.split(frame.head)[1] + frame.body,
            )
            for row, frame in zip(rows, frames, strict=True)
        ]  # fmt: skip

        def work(routes: Routed) -> Statement:
            values = columns(("ids", "epochs", "tried", "fences", "runs", "data"), given)
            return self.sql.OPEN_AND_PUBLISH, {**values, **_places(routes, frames)}

        try:
            _, routes, _ = self._send(frames, work)
        except exceptions.TransportFailure:  # Nothing was executed.
            raise
        except BaseException:
            for row in rows:
                row.tried = True
            raise
        return [len(queues) for queues in routes]

    def _finish(
        self, batch: Sequence[Finish], take_order: Take | None
    ) -> tuple[Sequence[bool], Sequence[Delivery]]:
        tokens = [each.delivery.token or _REQUEUED for each in batch]
        given = [
            (each.id, each.epoch, n, each.reply.head + each.reply.body)
            for each, (_, n) in zip(batch, tokens, strict=True)
        ]
        frames = [each.reply for each in batch]
        owner = {"holder": self._rows.holder, "consumers": [*{name for name, _ in tokens}]}

        def work(routes: Routed) -> Statement:
            values = columns(("ids", "epochs", "taken", "data"), given)
            return self.sql.FINISH, {**owner, **values, **_places(routes, frames)}

        rows, _, taken = self._send(frames, work, take_order)
        for each in batch:
            each.delivery.token = None
        self._settled_count += len(batch)
        foreign_rows = rows[0][1]
        return [number not in foreign_rows for number in range(1, len(batch) + 1)], taken

    def _send(
        self,
        frames: Sequence[Frame],
        work: Callable[[Routed], Statement],
        take: Take | None = None,
    ) -> tuple[list[Any], Routed, list[Delivery]]:
        """Execute a statement that publishes messages, and notify consumers.

        :param work: returns the statement for the queues of each message.
        :param take: is executed in the same transaction.
        :returns: the rows of the statement, the queues, and the messages that `take` took.
        """
        while True:
            table = self._routes
            routes = [table.find(frame.exchange, frame.routing_key) for frame in frames]
            if not all(routes) and self._is_changed(table):
                continue
            counts = Counter(queue for queues in routes for queue in queues)
            statement, values = work(routes)
            statements = [(statement, {**values, "routes": table.version})]
            if take is not None:
                statements.append((self.sql.TAKE, {**take.values, "routes": table.version}))
            rows, *others = self._session.run_all(statements, self._rings(counts))
            # The first value is 0 if the routing has changed. Then nothing was done.
            if rows[0][0] or not self._is_changed(table):
                return rows, routes, [] if take is None else self._deliveries(take, others[0])

    def prepare_take(self, max_messages: int, queues: Sequence[str]) -> Take | None:
        return self._begin_take(max_messages, queues) if self._name else None

    def confirm_taken(self, take_order: Take, undelivered: Sequence[Delivery]) -> None:
        self._undelivered.update(each.token[1] for each in undelivered)
        self._unanswered.discard(take_order.values["take"])
        if take_order.has_more:
            self._nonempty.update(take_order.values["queues"])

    def fail_taken(self, take_order: Take) -> None:
        self._missed = True
        if self._closed:  # Its departure may not have seen these messages.
            _unsent_departures.setdefault(self.place, []).extend(self._departures())
        self.nudge()

    # Consuming.

    def watch(self, queue: str) -> None:
        self._watched_queues[queue] += 1
        self._nonempty.add(queue)
        self._next_report_at = 0.0

    def unwatch(self, queue: str) -> None:
        self._watched_queues -= Counter((queue,))  # This removes counts of zero.
        self._nonempty &= {*self._watched_queues}

    def refresh(self) -> int:
        if self._missed:
            raise self.recoverable_connection_errors[0](
                "a reply of the database was lost; it may have contained requests"
            )
        now = time.monotonic()
        if now >= self._next_report_at:
            self._report()
        if now >= self._next_sweep_at:
            self._next_sweep_at = now + min(_SWEEP_SECONDS, self._dead_after / 3)
            self._sweep()
            self._sweep_queues(now)
        self._clean(now)
        if now >= self._next_poll_at:
            self._next_poll_at = now + self._poll_pause
            self._poll_pause = min(1.5 * self._poll_pause, _REPORT_SECONDS)
            self._nonempty.update(self._watched_queues)
        return MAX_READY if self._nonempty else 0

    def _report(self) -> None:
        if not self._name:
            self._join()
        self._next_report_at = time.monotonic() + min(_REPORT_SECONDS, self._dead_after / 3)
        queues = [*{*self._watched_queues, *self._owned}]
        reported = self._run(self.sql.REPORT, {"consumer": self._name, "queues": queues})
        if reported and abs(reported[0][0]) > self._dead_after * 2 / 3:
            self._postpone_sweeps()
        if not reported:
            LOG.warning("%s has treated this consumer as dead", self.place.shown)
            self._name = ""
            for queue in tuple(self._owned):
                self.declare_queue(queue, owned=True)
            self._report()

    def _join(self) -> None:
        # Each name is used once, because the messages of a forgotten name were requeued, except
        # those with claims. `close` sends the departures of all names.
        name = uuid.uuid4().hex
        self._run(self.sql.JOIN, {"consumer": name})
        self._listen(name)
        self._name = name
        self._names.append(name)
        self._postpone_sweeps()

    def _postpone_sweeps(self) -> None:
        """Give other processes time to report: the server may have been unavailable."""
        now = time.monotonic()
        self._next_sweep_at = now + self._dead_after
        self._next_queue_sweep_at = now + _QUEUE_SWEEP_SECONDS

    def _sweep(self) -> None:
        """Requeue the messages of dead consumers."""
        values = {"seconds": self._dead_after, "gone": _CLAIMS_GONE_AFTER_SECONDS}
        requeued = self._run(self.sql.SWEEP, values)
        if requeued:
            count = sum(count for _, count in requeued)
            LOG.warning("consumers died: %d messages were requeued", count)
            self._ring(dict(requeued))

    def _sweep_queues(self, now: float) -> None:
        """Delete unused queues."""
        if now < self._next_queue_sweep_at:
            return
        self._next_queue_sweep_at = now + random.uniform(0.5, 1.5) * _QUEUE_SWEEP_SECONDS
        values = {"seconds": _GONE_AFTER_SECONDS, "own": [*self._owned]}
        self._run(self.sql.DELETE_SILENT_QUEUES, values)
        if self._run(self.sql.SWEEP_DUE, {"seconds": _STALE_SWEEP_SECONDS}):
            self._run(self.sql.DELETE_UNUSED_QUEUES, {"seconds": _STALE_AFTER_SECONDS})
            self._run(self.sql.DELETE_ORPHANS, {"seconds": _STALE_SWEEP_SECONDS})

    def _clean(self, now: float) -> None:
        """Remove what deleted messages leave behind, if the database needs it."""

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        if not self._name:
            self._join()
        for group, (limit, queues) in enumerate(groups):
            candidates = [queue for queue in queues if queue in self._nonempty]
            if not candidates or limit <= 0:
                continue
            # Before the statement, because a notification adds the queue again.
            self._forget_notified(candidates)
            take = self._begin_take(limit, candidates)
            taken = self._take(take, [queue for _, waiting in groups for queue in waiting])
            self._unanswered.discard(take.values["take"])
            if take.has_more:
                self._nonempty.update(candidates)
            if taken:
                if self._session.is_polling:
                    self._poll_pause, self._next_poll_at = _FIRST_POLL_SECONDS, 0.0
                return [(group, delivery) for delivery in taken]
        return []

    def _begin_take(self, limit: int, queues: Sequence[str]) -> Take:
        number = next(self._take_numbers)
        self._unanswered.add(number)
        values = {
            "queues": list(queues), "limit": limit, "bytes": MAX_BATCH_BYTES,
            "holder": self._rows.holder or None,
            "consumer": self._name, "take": number, "routes": None,
        }  # fmt: skip
        return Take(values, time.monotonic())

    def _take(self, take: Take, waiting: Sequence[str]) -> list[Delivery]:
        """Take messages. `waiting`: all queues whose consumers have capacity."""
        try:
            return self._deliveries(take, self._run(self.sql.TAKE, take.values))
        except exceptions.TransportFailure:  # Nothing was taken.
            self._unanswered.discard(take.values["take"])
            raise

    def _deliveries(self, take: Take, rows: Sequence[Sequence[Any]]) -> list[Delivery]:
        found_count = rows[0][0] if rows else 0
        take.has_more = found_count == take.values["limit"] or found_count > len(rows)
        return [self._delivery(take, *row) for _, *row in rows]

    def _delivery(
        self,
        take: Take,
        n: int,
        queue: str,
        again: bool,
        data: bytes | None,
        id: str | None,
        epoch: int,
        granted: bool,
        *row: Any,
    ) -> Delivery:
        delivery = Delivery(queue, (take.values["consumer"], n), data, again)
        if id is not None and self._rows.holder:
            delivery.label = b"!%b %d " % (id.encode(), epoch)
            delivery.taken_at = take.began
            delivery.claim = self._rows.claim(id, epoch, row[:4], granted)
        return delivery

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        tokens = [each.token for each in deliveries if each.token is not None]
        for each in deliveries:
            each.token = None
        if self._closed or self._session.is_broken or not tokens:
            return False
        consumers, numbers = [*{name for name, _ in tokens}], [n for _, n in tokens]
        deleted = self._run(self.sql.SETTLE, {"numbers": numbers, "consumers": consumers})
        self._settled_count += len(deleted)
        return len(deleted) == len(deliveries)

    def refuse(self, delivery: Delivery) -> None:
        if not (self._closed or self._session.is_broken or delivery.token is None):
            self._run(self.sql.REFUSE, self._token_values(delivery))
            delivery.token = None

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        if delivery.token is None:
            return
        if not delivered:
            self._undelivered.add(delivery.token[1])
        if self._session.is_broken:
            return  # Closing this connection requeues all its messages.
        values = {**self._token_values(delivery), "undo": not delivered}
        try:
            for (queue,) in self._run(self.sql.REQUEUE, values):
                self._ring({queue: 1})
            self._undelivered.discard(delivery.token[1])
            delivery.token = None
        except self._failures:
            if delivered:
                raise

    def _token_values(self, delivery: Delivery) -> dict[str, Any]:
        consumer, n = delivery.token
        return {"consumer": consumer, "n": n, "holder": self._rows.holder or None}

    # Waiting.

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Wait for a notification, a nudge, the next report or the next poll."""
        self._register(queues)
        if not self._nonempty.isdisjoint(queues):
            return
        now = time.monotonic()
        remaining = min(self._next_report_at, self._next_sweep_at, self._next_poll_at) - now
        remaining = remaining if timeout is None else min(timeout, remaining)
        self._wait_for_input(max(0.0, remaining))

    def _wait_for_input(self, seconds: float) -> None:
        self._nudge.wait(seconds)

    def nudge(self) -> None:
        self._nudge.notify()

    # Notifications, in databases that have them.

    def _listen(self, name: str) -> None:
        """Receive the notifications of the consumer with this name."""

    def _register(self, queues: Sequence[str]) -> None:
        """Register for a notification of each of these queues, before this consumer waits."""

    def _forget_notified(self, queues: Sequence[str]) -> None:
        """Treat queues as empty, and any notifications of them as received."""
        self._nonempty.difference_update(queues)

    def _rings(self, counts: Mapping[str, int], *, requeued: bool = False) -> Sequence[Statement]:
        """Return the statements that notify waiting consumers of these numbers of messages."""
        return ()

    def _ring(self, counts: Mapping[str, int]) -> None:
        """Notify waiting consumers of requeued messages."""
        for statement, values in self._rings(counts, requeued=True):
            self._run(statement, values)

    # End.

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._names and not self._session.is_inherited:
            self._leave()
        self._session.close()
        self._nudge.close()

    def _leave(self) -> None:
        """Requeue unacknowledged messages. Never raises; others notice the silence later."""
        unsent = self._departures()
        try:
            # A new session first ends those that were lost, which may still execute a take.
            is_usable = not (self._missed or self._session.is_broken)
            session = self._session if is_usable else self.session_type(self.place)
            try:
                while unsent:
                    self._send_departure(session, unsent[-1])
                    unsent.pop()
            finally:
                if session is not self._session:
                    session.close()
        except self._failures as error:
            LOG.debug("%s did not receive the end of a consumer: %s", self.place.shown, error)
            _unsent_departures.setdefault(self.place, []).extend(unsent)

    def _departures(self) -> list[dict[str, Any]]:
        """Return the values of `LEAVE` for each name of this consumer."""
        departure = {
            "holder": self._rows.holder or None,
            "undelivered": [*self._undelivered],
            "unanswered": [*self._unanswered],
        }
        return [{**departure, "consumer": name} for name in self._names]

    def _send_departure(self, session: Session, departure: Mapping[str, Any]) -> None:
        requeued = session.run(self.sql.LEAVE, departure)
        counts = Counter(queue for (queue,) in requeued)
        for statement, values in self._rings(counts, requeued=True):
            session.run(statement, values)

    def __del__(self) -> None:
        # Closes a connection that was not released. Partly initialized objects are closed.
        # Nothing is sent, because the server may be unreachable; others notice the silence.
        if not getattr(self, "_closed", True):
            self._closed = True
            self._session.close()
            self._nudge.close()


def columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the values of rows by the names of their columns."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _places(routes: Iterable[Sequence[str]], frames: Sequence[Frame]) -> dict[str, list[Any]]:
    """Return the number of each message with each of its queues and its place there."""
    rows = [
        (number, queue, 9 - frames[number - 1].priority)
        for number, queues in enumerate(routes, 1)
        for queue in queues
    ]
    return columns(("numbers", "queues", "places"), rows)
