"""Transport through PostgreSQL: `postgresql://USER@HOST/DATABASE`.

A consumer that waits is notified by LISTEN and NOTIFY. Behind a pooler that does not keep sessions,
such as PgBouncer, it polls.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from wbengine import exceptions
from wbengine.transports._broker import Delivery
from wbengine.transports._sql import postgresql_statements as sql
from wbengine.transports._sql.postgresql_session import LOST, PostgreSQLSession
from wbengine.transports._sql.sql_broker import SQLBroker, Take, columns
from wbengine.transports._sql.sql_session import Statement

__all__ = ["PostgreSQLBroker"]

#: Number of deleted messages after which a connection vacuums the tables, and the least interval.
_VACUUM_MESSAGES: Final = 5000
_VACUUM_SECONDS: Final = 2.0
#: Delay of the search for messages that were published while a take registered its consumer. If
#: messages keep arriving, a notification is faster, and no search is necessary.
_SEARCH_DELAY_SECONDS: Final = 0.005
#: The place after those of all messages; see `postgresql_statements`.
_END_PLACE: Final = 10

#: Place and number of a message in a queue.
Mark = tuple[int, int]


@dataclass(slots=True)
class MarkedTake(Take):
    """A take. `marks`: those of the interval in which it began."""

    marks: dict[str, Mark] = field(default_factory=dict)


class PostgreSQLBroker(SQLBroker):
    """One connection to the queues in a database; see `SQLBroker`."""

    recoverable_connection_errors = LOST
    session_type = PostgreSQLSession
    sql: ClassVar[Any] = sql

    _session: PostgreSQLSession

    def __init__(self, *arguments: Any) -> None:
        # Watched queues of which a notification has arrived, and those for which this consumer is
        # registered.
        self._rung: set[str] = set()
        self._registered: frozenset[str] = frozenset()
        # Time of the search for messages that were published before the registration.
        self._next_search_at = math.inf
        self._next_vacuum_at = 0.0
        # Takes start at the first message that an earlier take found in the queue, because deleted
        # ones before it may be in the index. Messages before it may have been requeued, of which
        # waiting consumers are notified, or committed late: the first take in each interval of
        # reports finds them. By queue: the marks of this interval, those to use after its first
        # take, and those for the next interval.
        self._marks: dict[str, Mark] = {}
        self._tested_marks: dict[str, Mark] = {}
        self._new_marks: dict[str, Mark] = {}
        super().__init__(*arguments)

    def _listen(self, name: str) -> None:
        self._registered = frozenset()
        if not self._session.is_polling:
            self._session.listen(sql.CHANNEL + name, self._on_ring)

    def _on_ring(self, payload: str) -> None:
        queue = payload.removeprefix(sql.REQUEUED)
        if queue != payload:
            self._marks.pop(queue, None)
        self._rung.add(queue)
        self._nonempty.add(queue)
        self._registered = frozenset()  # The notification has removed the registration.
        self._nudge.notify()  # It may have arrived in another thread.

    def _forget_notified(self, queues: Sequence[str]) -> None:
        super()._forget_notified(queues)
        self._rung.difference_update(queues)

    def _take(self, take: Take, waiting: Sequence[str]) -> list[Delivery]:
        if self._session.is_polling:
            waiting = ()
        take.values["waiting"] = list(waiting)
        taken = super()._take(take, waiting)
        # A notification would have removed the registration.
        if waiting and not (take.has_more or self._rung):
            self._registered |= {*waiting}
            self._next_search_at = time.monotonic() + _SEARCH_DELAY_SECONDS
        return taken

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        if queues and self._next_search_at < math.inf:
            seconds = max(0.0, self._next_search_at - time.monotonic())
            timeout = seconds if timeout is None else min(timeout, seconds)
        super().wait(timeout, queues)

    def _register(self, queues: Sequence[str]) -> None:
        if self._rung.difference(queues):  # Other consumers may have capacity.
            self._ring(dict.fromkeys(self._rung.difference(queues), 1))
            self._rung.clear()
        if not queues or self._session.is_polling:
            return
        if not self._registered >= {*queues}:
            self._registered |= {*queues}  # First, because a notification may arrive meanwhile.
            self._run(sql.REGISTER, {"consumer": self._name, "queues": list(queues)})
            self._next_search_at = 0.0
        if time.monotonic() >= self._next_search_at:
            self._next_search_at = math.inf
            found = self._run(sql.NONEMPTY, _ranges(queues, self._marks))
            self._nonempty.update(queue for (queue,) in found)

    def _report(self) -> None:
        super()._report()
        self._tested_marks.update(self._new_marks)
        self._marks, self._new_marks = {}, {}

    def _begin_take(self, limit: int, queues: Sequence[str]) -> MarkedTake:
        take, marks = super()._begin_take(limit, queues), self._marks
        values = {**take.values, **_ranges(queues, marks), "waiting": []}
        return MarkedTake(values, take.began, marks=marks)

    def _deliveries(self, take: Take, rows: Sequence[Sequence[Any]]) -> list[Delivery]:
        assert isinstance(take, MarkedTake)
        for _, n, queue, *_, place in rows:
            self._new_marks.setdefault(queue, (place, n))
        for queue in take.values["queues"]:
            if queue in self._tested_marks:
                take.marks.setdefault(queue, self._tested_marks[queue])
        return super()._deliveries(take, [row[:-1] for row in rows])

    def _rings(self, counts: Mapping[str, int], *, requeued: bool = False) -> Sequence[Statement]:
        values = {
            "queues": [*counts], "counts": [*counts.values()],
            "prefix": sql.REQUEUED if requeued else "",
        }  # fmt: skip
        return [(sql.RING, values)]

    def _wait_for_input(self, seconds: float) -> None:
        poll = select.poll()  # `select` does not support large descriptors.
        for descriptor in (self._session.fileno(), self._nudge.fd):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        if self._nudge.fd in ready:
            self._nudge.clear()
        if len(ready) > (self._nudge.fd in ready):
            self._session.receive()

    def _clean(self, now: float) -> None:
        if self._settled_count >= _VACUUM_MESSAGES and now >= self._next_vacuum_at:
            self._vacuum(now)

    def _vacuum(self, now: float) -> None:
        ((can_vacuum,),) = self._run(sql.CAN_VACUUM)
        self._next_vacuum_at = now + _VACUUM_SECONDS if can_vacuum else math.inf
        self._settled_count = 0
        if not can_vacuum:
            return
        with contextlib.suppress(exceptions.TransportFailure):  # For example `statement_timeout`.
            self._run(sql.VACUUM)


def _ranges(queues: Iterable[str], marks: Mapping[str, Mark]) -> dict[str, list[Any]]:
    """Return the parts of the index in which waiting messages of these queues are searched."""
    parts: list[tuple[str, int, int, int]] = []
    for queue in queues:
        place, n = marks.get(queue, (0, 0))
        parts += [(queue, 0, 0, place)] * (place > 0)
        parts.append((queue, place, n, _END_PLACE))
    return columns(("queues", "places", "lows", "befores"), parts)
