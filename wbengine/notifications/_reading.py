"""Rows of a store that are events: one statement for each source, with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from wbengine import _sql, states
from wbengine._sql import dialects
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _commands, _history, models
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import rows, tables
from wbengine.types import _tags

__all__ = ["BLOCKED", "LOST", "SOURCES", "TRASHED", "EventReader", "FlowChange", "PendingFlow"]

#: Sources of events with a time: the states of failed flows, lost workers, blocked flows, and jobs
#: in the trash.
LOST: Final = "lost"
BLOCKED: Final = "blocked"
TRASHED: Final = "trashed"
SOURCES: Final = (states.FAILURE, states.REVERTED, LOST, BLOCKED, TRASHED)
_OF_JOBS: Final = (BLOCKED, TRASHED)

_FLOWS: Final = tables.FLOWS.name
_ATOMS: Final = tables.ATOMS.name
_JOBS: Final = tables.JOBS.name
_PAGE_SIZE: Final = 1000
_NAMES_PER_READ: Final = 500


class FlowChange(NamedTuple):
    """A flow at the time of an event.

    :ivar at: Unix seconds on the clock of the store.
    :ivar entered_at: time of the change of the state on the clock of its engine, which later writes
        do not change.
    :ivar error: the reason for FAILURE or REVERTED in one line; it may contain secrets.
    :ivar is_undone: whether the flow was reverted, or is being reverted, after it had succeeded.
    :ivar remaining: the first names of tasks whose effects remain after that.
    :ivar is_reversion: whether the flow was reverted after it had ended in FAILURE, for the same
        error.
    """

    uuid: str
    name: str
    state: str
    at: float
    entered_at: float
    error: str | None
    tags: Mapping[str, _tags.Value]
    is_cancelled: bool
    code: str | None
    is_reversion: bool
    is_undone: bool
    remaining: tuple[str, ...]


class PendingFlow(NamedTuple):
    uuid: str
    name: str
    created: float
    tags: Mapping[str, _tags.Value]


class EventReader:
    """Reads events from a database.

    :param board: the job board whose blocked and due jobs are read; None: a board elsewhere.
    """

    def __init__(self, backend: sql.SQLBackend, board: impl_sql.SQLJobBoard | None) -> None:
        self._backend = backend
        self._board = board
        self._sql = _Statements(backend.options.dialect)

    def changes(self, source: str, since: float) -> Iterator[FlowChange]:
        """Yield the changes of a source at or after a time, in their order.

        Cost: proportional to their number; for TRASHED, to that of all jobs in the trash.
        """
        offset = impl_sql.MIN_BLOCKED_NOT_BEFORE if source == BLOCKED else 0.0
        if source in _OF_JOBS and self._board is None:
            return
        parameters: dict[str, Any] = {
            # The times of blocking are rounded to seconds.
            "since": offset + since - (1.0 if source == BLOCKED else 0.0),
            "board": self._board and self._board.namespace,
        }
        for row in self._pages(self._sql.changes[source], parameters):
            yield _change(row, offset)

    def latest_successes(self, names: Sequence[str], since: float) -> Iterator[tuple[str, float]]:
        """Yield these names of flows with the latest time of a success at or after a time."""
        for start in range(0, len(names), _NAMES_PER_READ):
            parameters = {"names": list(names[start : start + _NAMES_PER_READ]), "since": since}
            for row in self._read(self._sql.successes, parameters):
                yield row["name"], row["moment"]

    def success(self, name: str, at: float) -> FlowChange | None:
        """Return a flow with this name that succeeded at this time."""
        page = self._read(self._sql.success, {"name": name, "since": at})
        return _change(page[0], 0.0) if page else None

    def successes(self, name: str, since: float) -> Iterator[FlowChange]:
        """Yield the flows with this name that succeeded at or after a time."""
        for row in self._pages(self._sql.all_successes, {"name": name, "since": since}):
            yield _change(row, 0.0)

    def repaired(self, name: str, since: float) -> Iterator[FlowChange]:
        """Yield the flows with this name that failed and then succeeded at or after a time.

        Cost: proportional to the number of flows that succeeded since.
        """
        for row in self._pages(self._sql.repaired, {"name": name, "since": since}):
            history = _history.changes_of(rows.object_of(row["more"]))
            if any(change.state in _history.FAILED for change in history):
                yield _change(row, 0.0)

    def oldest_pending(self, before: float) -> PendingFlow | None:
        """Return the oldest flow that no engine has started, of those created before a time.

        Flows without a due job are left out.
        """
        parameters = {"before": before, "board": self._board and self._board.namespace}
        statement = self._sql.pending if self._board is None else self._sql.pending_with_job
        page = self._read(statement, parameters)
        if not page:
            return None
        oldest = min(page, key=lambda row: float(row["created"]))
        tags = _tags.tags_in(rows.object_of(oldest["meta"]))
        return PendingFlow(oldest["uuid"], oldest["name"], oldest["created"], tags)

    def _pages(self, statement: sa.TextClause, parameters: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the rows of a statement that is ordered by `moment` and `id`."""
        parameters = {**parameters, "id": -1, "limit": _PAGE_SIZE}
        while True:
            page = self._read(statement, parameters)
            yield from page
            if len(page) < _PAGE_SIZE:
                return
            parameters |= {"since": page[-1]["moment"], "id": page[-1]["id"]}

    def _read(self, statement: sa.TextClause, parameters: Mapping[str, Any]) -> list[Any]:
        def work(connection: sa.Connection) -> list[Any]:
            return list(connection.execute(statement, parameters).mappings())

        return _sql.transact(self._backend.engine, "Reading events", work, write=False)


def _change(row: Mapping[str, Any], offset: float) -> FlowChange:
    fields, meta = rows.flow_fields(row)
    history = _history.changes_of(fields)
    entered = _history.entered_at(history) or 0.0
    undo = meta.get(models.UNDONE)
    return FlowChange(
        row["uuid"],
        fields.get("name", row["name"]),
        row["state"] or states.PENDING,
        row["moment"] - offset,
        entered,
        _history.error(row["state"], history),
        _tags.tags_in(meta),
        meta.get(models.CANCELLED) is not None,
        row["code"],
        _is_reversion(history),
        undo is not None,
        tuple(undo["remaining"]) if isinstance(undo, Mapping) else (),
    )


def _is_reversion(history: Sequence[models.Change]) -> bool:
    """Return whether a flow in FAILURE was reverted without a retry in between.

    A retry puts the flow into PENDING, as a request to resume or revert it does.
    """
    if not history or history[-1].state != states.REVERTED:
        return False
    for change in reversed(history):
        if change.state == states.FAILURE:
            return _place_of(change.why) == _place_of(history[-1].why)
        if change.state == states.PENDING and not _commands.describes(
            change.why, _commands.RESUME, _commands.REVERT
        ):
            return False
    return False


def _place_of(error: str | None) -> list[str]:
    """Return the name of the atom and the type of its exception, without the message."""
    return (error or "").split(": ")[:2]


class _Statements:
    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        columns = "f.id, f.uuid, f.name, f.state, f.meta, f.more, f.code"
        in_order = "AND ({0} > :since OR {1} > :id) ORDER BY {0}, {1} LIMIT :limit"
        ended = in_order.format("f.ended", "f.id")
        lost_worker = json.dumps(states.WORKER_LOST)
        self.changes = {
            **{
                state: sa.text(
                    f"SELECT {columns}, f.ended AS moment FROM {_FLOWS} f"
                    f" WHERE f.state = '{state}' AND f.ended >= :since {ended}"
                )
                for state in (states.FAILURE, states.REVERTED)
            },
            LOST: sa.text(
                f"SELECT {columns}, f.resent_at AS moment FROM {_FLOWS} f"
                " WHERE f.resent_at IS NOT NULL AND f.resent_at >= :since"
                f" AND EXISTS (SELECT 1 FROM {_ATOMS} a WHERE a.flow_uuid = f.uuid"
                f" AND a.more LIKE '%{lost_worker}%') {in_order.format('f.resent_at', 'f.id')}"
            ),
            BLOCKED: sa.text(
                f"SELECT {columns.replace('f.id', 'j.id')}, j.not_before AS moment"
                f" FROM {_JOBS} j JOIN {_FLOWS} f ON f.uuid = j.uuid"
                " WHERE j.board = :board AND j.trashed = 0 AND j.not_before >= :since"
                f" {in_order.format('j.not_before', 'j.id')}"
            ),
            TRASHED: sa.text(
                f"SELECT {columns.replace('f.id', 'j.id')}, j.updated AS moment"
                f" FROM {_JOBS} j JOIN {_FLOWS} f ON f.uuid = j.uuid"
                " WHERE j.board = :board AND j.trashed = 1 AND j.updated >= :since"
                f" {in_order.format('j.updated', 'j.id')}"
            ),
        }
        succeeded = f"FROM {_FLOWS} f WHERE f.state = '{states.SUCCESS}' AND f.ended"
        self.successes = sa.text(
            f"SELECT f.name, MAX(f.ended) AS moment {succeeded} >= :since AND f.name IN :names"
            " GROUP BY f.name"
        ).bindparams(sa.bindparam("names", expanding=True))
        self.success = sa.text(
            f"SELECT {columns}, f.ended AS moment {succeeded} = :since AND f.name = :name LIMIT 1"
        )
        failed = " OR ".join(f"f.more LIKE '%{json.dumps(state)}%'" for state in _history.FAILED)
        self.all_successes = sa.text(
            f"SELECT {columns}, f.ended AS moment {succeeded} >= :since AND f.name = :name {ended}"
        )
        self.repaired = sa.text(
            f"SELECT {columns}, f.ended AS moment {succeeded} >= :since AND f.name = :name"
            f" AND ({failed}) {ended}"
        )
        self.pending = _pending("")
        self.pending_with_job = _pending(
            f" AND EXISTS (SELECT 1 FROM {_JOBS} j WHERE j.uuid = f.uuid AND j.board = :board"
            f" AND j.trashed = 0 AND j.not_before <= {now})"
        )


def _pending(condition: str) -> sa.TextClause:
    # Each state has its own SELECT, because each can use an index.
    parts = (
        f"SELECT * FROM (SELECT f.uuid, f.name, f.created, f.meta FROM {_FLOWS} f"
        f" WHERE f.state {state} AND f.created < :before{condition} ORDER BY f.created, f.id"
        f" LIMIT 1) AS part{number}"
        for number, state in enumerate(("IS NULL", f"= '{states.PENDING}'"))
    )
    return sa.text(" UNION ALL ".join(parts))
