"""Queues of submitted flows: what waits in them, which conductors serve, and pauses.

A row in `wbe_job_queues` is a queue that is paused or that a conductor has served.
`jobs.backends._redis_queues` contains the queues of a board in Redis.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._introspection import object_names
from wbengine._sql import dialects
from wbengine.jobs import _places
from wbengine.persistence import base
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import tables, turns

__all__ = [
    "BaseJobQueues", "JobKey", "JobQueue", "JobQueues", "QueueCounts", "QueueRow", "queues_of",
]  # fmt: skip

_T = TypeVar("_T")

#: Time after the latest report of a conductor for which a queue counts as served.
_SERVED_SECONDS: Final = 20.0
_MAX_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class JobQueue:
    """A queue of flows.

    :ivar waiting: number of flows that conductors could take now; `delayed`: of those that wait
        for a time, a signal, a permit or other code; `running`: of those that conductors have.
    :ivar keys: number of fair keys of these flows.
    :ivar oldest: submission of the oldest waiting flow, in Unix seconds.
    :ivar is_served: whether a conductor serves it.
    :ivar paused_at: start of its pause, or of that of all queues, in Unix seconds.
    :ivar paused_as: the name that `resume` needs: that of the queue, or '*'.
    """

    name: str
    waiting: int = 0
    delayed: int = 0
    running: int = 0
    keys: int = 0
    oldest: float | None = None
    is_served: bool = False
    paused_at: float | None = None
    paused_by: str | None = None
    reason: str | None = None
    paused_as: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class JobKey:
    """The flows of a fair key in a queue. The numbers are those of `JobQueue`."""

    key: str
    waiting: int
    delayed: int
    running: int
    oldest: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class QueueRow(NamedTuple):
    """The pause of a queue, and the seconds since the latest report of a conductor."""

    paused_at: float | None
    paused_by: str | None
    reason: str | None
    age: float


class QueueCounts(NamedTuple):
    """The numbers of a `JobQueue`."""

    waiting: int = 0
    delayed: int = 0
    running: int = 0
    keys: int = 0
    oldest: float | None = None


class BaseJobQueues(abc.ABC):
    """The queues of a job board."""

    @abc.abstractmethod
    def _rows(self) -> Mapping[str, QueueRow]:
        """Return the queues that were served or are paused, and '*', by name."""

    @abc.abstractmethod
    def _counts(self) -> Mapping[str, QueueCounts]:
        """Return the queues with flows, by name."""

    @abc.abstractmethod
    def _keys(self, queue: str, limit: int) -> list[JobKey]:
        """Implement `keys`."""

    @abc.abstractmethod
    def _pause(self, name: str, reason: str | None, by: str | None) -> None:
        """Implement `pause`."""

    @abc.abstractmethod
    def _resume(self, name: str) -> list[str] | None:
        """End a pause. Return the names of the paused queues if this one is not paused."""

    @abc.abstractmethod
    def report(self, names: Iterable[str]) -> None:
        """Store that a conductor serves these queues now."""

    def all(self) -> list[JobQueue]:
        """Return the queues with flows, and those that are served or paused, by name."""
        rows, counts = self._rows(), self._counts()
        everywhere = rows.get(_places.ALL_QUEUES)
        queues = []
        for name in sorted({_places.DEFAULT_QUEUE, *rows, *counts} - {_places.ALL_QUEUES}):
            own = rows.get(name)
            is_served = any(
                row is not None and row.age < _SERVED_SECONDS for row in (own, everywhere)
            )
            pause: tuple[Any, ...] = ()
            for paused_as, row in ((_places.ALL_QUEUES, everywhere), (name, own)):
                if row is not None and row.paused_at is not None:
                    pause = (*row[:3], paused_as)
            queues.append(JobQueue(name, *counts.get(name, QueueCounts()), is_served, *pause))
        return queues

    def is_served(self, name: str) -> bool:
        """Return whether a conductor serves a queue."""
        rows, names = self._rows(), (name, _places.ALL_QUEUES)
        return any(rows[each].age < _SERVED_SECONDS for each in names if each in rows)

    def keys(self, queue: str, limit: int = 100) -> list[JobKey]:
        """Return the fair keys of the flows of a queue, those with most waiting flows first."""
        return self._keys(_places.check_queue(queue), min(limit, _MAX_KEYS))

    def pause(self, name: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Let conductors take no more flows of a queue; '*': of all queues. Flows continue.

        :raises ValueError: if the name is invalid.
        """
        if name != _places.ALL_QUEUES:
            _places.check_queue(name)
        self._pause(name, reason, by)

    def resume(self, name: str) -> None:
        """End the pause of a queue, or of all queues.

        :raises NotFound: if it is not paused.
        """
        paused = self._resume(name)
        if paused is not None:
            raise exceptions.NotFound(
                f"Queue {name!r} is not paused{object_names.hint(name, paused)}"
            )


class JobQueues(BaseJobQueues):
    """The queues in the database of the flows, or of their jobs.

    :raises ValueError: if the store is not a database.
    """

    def __init__(self, backend: base.Backend, namespace: str = "default") -> None:
        if not isinstance(backend, sql.SQLBackend):
            raise ValueError(f"Queues of flows require a database, got {backend!r}")
        self._backend = backend
        self._board = namespace
        self._statements = _Statements(backend.options.dialect)

    def _rows(self) -> Mapping[str, QueueRow]:
        parameters = {"board": self._board}
        rows = self._transact(
            "Reading queues of flows",
            lambda connection: connection.execute(self._statements.queues, parameters).all(),
            write=False,
        )
        return {row.name: QueueRow(*row[1:]) for row in rows}

    def _counts(self) -> Mapping[str, QueueCounts]:
        parameters = {"board": self._board}
        rows = self._transact(
            "Reading queues of flows",
            lambda connection: connection.execute(self._statements.counts, parameters).all(),
            write=False,
        )
        # MySQL returns sums as decimals.
        return {row.queue: QueueCounts._make((*map(int, row[1:5]), row.oldest)) for row in rows}

    def _keys(self, queue: str, limit: int) -> list[JobKey]:
        parameters = {"board": self._board, "queue": queue, "limit": limit}
        rows = self._transact(
            "Reading keys of flows",
            lambda connection: connection.execute(self._statements.keys, parameters).all(),
            write=False,
        )
        return [
            JobKey(row.fair_key, int(row.waiting), int(row.later), int(row.running), row.oldest)
            for row in rows
        ]

    def _pause(self, name: str, reason: str | None, by: str | None) -> None:
        row = {"board": self._board, "name": name, "reason": reason, "sender": by}
        self._transact(
            f"Pausing queue {name!r}",
            lambda connection: connection.execute(self._statements.pause, [row]),
        )

    def _resume(self, name: str) -> list[str] | None:
        parameters = {"board": self._board, "name": name}

        def work(connection: sa.Connection) -> list[str] | None:
            if connection.execute(self._statements.resume, parameters).rowcount:
                if self._statements.notify is not None:
                    connection.execute(self._statements.notify, parameters)
                return None
            stored = connection.execute(self._statements.queues, parameters)
            return [row.name for row in stored if row.paused_at is not None]

        return self._transact(f"Resuming queue {name!r}", work)

    def report(self, names: Iterable[str]) -> None:
        """Store that a conductor serves these queues now. Delete turns of keys that are over."""
        rows = [{"board": self._board, "name": name} for name in sorted(names)]
        board = {"board": self._board}

        def work(connection: sa.Connection) -> None:
            connection.execute(self._statements.report, rows)
            connection.execute(self._statements.offer_begun, board)
            for queue in list(connection.scalars(self._statements.queues_of_keys, board)):
                turns.delete_past(connection, {**board, "queue": queue})

        self._transact("Reporting queues", work, durable=False)

    def _transact(
        self,
        what: str,
        work: Callable[[sa.Connection], _T],
        *,
        write: bool = True,
        durable: bool = True,
    ) -> _T:
        self._backend.prepare()
        return _sql.transact(self._backend.engine, what, work, write=write, durable=durable)


def queues_of(backend: base.Backend) -> list[JobQueue]:
    """Return the queues in the database of the flows; none if the store is not a database."""
    return JobQueues(backend).all() if isinstance(backend, sql.SQLBackend) else []


class _Statements:
    def __init__(self, dialect: str) -> None:
        now, jobs, queues = dialects.now(dialect), tables.JOBS.name, tables.JOB_QUEUES.name
        # Read once, not for each row. Conductors give jobs that are due their turns.
        time = f"(SELECT {now})"
        is_due, is_later = (f"owner IS NULL AND not_before {sign} {time}" for sign in ("<=", ">"))
        counts = (
            f"SUM(CASE WHEN {is_due} THEN 1 ELSE 0 END) AS waiting,"
            f" SUM(CASE WHEN {is_later} THEN 1 ELSE 0 END) AS later,"
            " SUM(CASE WHEN owner IS NOT NULL THEN 1 ELSE 0 END) AS running"
        )
        oldest = f"MIN(CASE WHEN {is_due} THEN created END) AS oldest"
        on_board = f"FROM {jobs} WHERE board = :board AND trashed = 0"
        self.counts = sa.text(
            f"SELECT queue, {counts}, COUNT(DISTINCT fair_key) AS key_count, {oldest}"
            f" {on_board} GROUP BY queue"
        )
        self.keys = sa.text(
            f"SELECT fair_key, {counts}, {oldest} {on_board} AND queue = :queue"
            " GROUP BY fair_key ORDER BY waiting DESC, fair_key LIMIT :limit"
        )
        self.queues = sa.text(
            f"SELECT name, paused_at, sender, reason, {now} - seen AS age FROM {queues}"
            " WHERE board = :board"
        )
        self.queues_of_keys = turns.queue_names(
            f"SELECT queue FROM {tables.FAIR_KEYS.name} WHERE board = :board"
        )
        # Earlier releases offer jobs that waited without a turn.
        self.offer_begun = sa.text(
            f"UPDATE {jobs} SET turn = {turns.FIRST} WHERE board = :board AND turn IS NULL"
            f" AND {turns.READY}"
        )
        key = ("board", "name")
        self.pause = dialects.upsert(
            dialect, queues, (*key, "paused_at", "reason", "sender"), key,
            given={"paused_at": now},
        )  # fmt: skip
        self.resume = sa.text(
            f"UPDATE {queues} SET paused_at = NULL, reason = NULL, sender = NULL"
            " WHERE board = :board AND name = :name AND paused_at IS NOT NULL"
        )
        self.report = dialects.upsert(dialect, queues, (*key, "seen"), key, given={"seen": now})
        self.notify = (
            sa.text(f"SELECT pg_notify('{jobs}', :board)")
            if dialect == dialects.POSTGRESQL
            else None
        )
