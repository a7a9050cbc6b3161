"""Ledgers whose rows are in a table: of a database, or of the file of a folder.

Each step is one statement that names the expected state, so the database decides which of two
callers succeeds. If a step is refused, the row is read to find the reason; the row may have changed
in between.
"""

from __future__ import annotations

import abc
import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine.transports import _ledger

__all__ = ["CLAIMED", "DONE", "OPEN", "Statements", "TableLedger", "Tables", "replacing_open_rows"]

LOG = logging.getLogger(__name__)

#: Values of the column `state`.
OPEN: Final = _ledger.STATES.index(_ledger.ROW_OPEN)
CLAIMED: Final = _ledger.STATES.index(_ledger.ROW_CLAIMED)
DONE: Final = _ledger.STATES.index(_ledger.ROW_DONE)

#: Maximum number of rows in one statement; databases limit the number of its parameters.
_MAX_ROWS_PER_STATEMENT: Final = 500


class Tables(NamedTuple):
    """The tables of a ledger, and the differences between their databases.

    :ivar rows: has the columns id, epoch, state, holder, result and changed.
    :ivar holders: has the columns holder and `beat`, the time of the last heartbeat.
    :ivar about: has one row, with the time of the last sweep in the column `swept`.
    :ivar now: SQL expression for the clock, in seconds.
    :ivar ids: SQL expression for the list of the ids in a statement.
    :ivar claim: further assignments of a claim.
    """

    rows: str
    holders: str
    beat: str
    about: str
    swept: str
    now: str
    ids: str = ":ids"
    claim: str = ""
    is_mysql: bool = False


def replacing_open_rows(rows: str, *, is_mysql: bool = False) -> str:
    """Return the end of an INSERT of OPEN rows, which replaces OPEN rows with lower epochs."""
    if not is_mysql:
        return (
            "ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, changed = excluded.changed"
            f" WHERE {rows}.state = {OPEN} AND {rows}.epoch < excluded.epoch"
        )
    is_lower = f"{rows}.state = {OPEN} AND {rows}.epoch < VALUES(epoch)"
    # MySQL assigns in this order: the last assignment changes the condition.
    assignments = [
        f"{name} = IF({is_lower}, VALUES({name}), {rows}.{name})" for name in ("changed", "epoch")
    ]
    return f"ON DUPLICATE KEY UPDATE {', '.join(assignments)}"


class Statements:
    """The statements of a ledger, with named arguments. Each changes or reads one step."""

    def __init__(self, tables: Tables) -> None:
        rows, holders, beat, now = tables.rows, tables.holders, tables.beat, tables.now
        # Condition of statements for engines. MySQL does not change a table that a subquery reads,
        # except through a derived table with a LIMIT.
        fence = (
            f" AND NOT EXISTS (SELECT 1 FROM (SELECT epoch FROM {rows} WHERE id = :fence LIMIT 1) f"
            " WHERE f.epoch > :number)"
        )
        claimed = f"id = :id AND epoch = :epoch AND state = {CLAIMED} AND holder = :holder"
        self.reopen = (
            f"UPDATE {rows} SET epoch = :epoch, state = {OPEN}, holder = NULL, changed = {now}"
            f" WHERE id = :id AND epoch < :epoch AND state <> {DONE}{fence}"
        )
        self.revoke = (
            f"DELETE FROM {rows} WHERE id = :id AND state = {OPEN}"
            f" AND epoch <= COALESCE(:epoch, epoch){fence}"
        )
        self.drop = f"DELETE FROM {rows} WHERE id IN {tables.ids}"
        # A holder without a heartbeat could be considered lost, so a claim requires one.
        self.claim = (
            f"UPDATE {rows} SET state = {CLAIMED}, holder = :holder, changed = {now}{tables.claim}"
            f" WHERE id = :id AND epoch = :epoch AND state = {OPEN}"
            f" AND EXISTS (SELECT 1 FROM {holders} h WHERE h.holder = :holder)"
        )
        self.renew = f"INSERT INTO {holders} (holder, {beat}) VALUES (:holder, {now}) " + (
            f"ON DUPLICATE KEY UPDATE {beat} = VALUES({beat})"
            if tables.is_mysql
            else f"ON CONFLICT (holder) DO UPDATE SET {beat} = excluded.{beat}"
        )
        self.finish = (
            f"UPDATE {rows} SET state = {DONE}, holder = NULL, result = :result, changed = {now}"
            f" WHERE {claimed}{fence}"
        )
        self.release = (
            f"UPDATE {rows} SET state = {OPEN}, holder = NULL, changed = {now} WHERE {claimed}"
        )
        self.silence = f"SELECT {now} - {beat} FROM {holders} WHERE holder = :holder"
        self.find = f"SELECT id, epoch, state, holder, result FROM {rows} WHERE id IN {tables.ids}"
        self.ids = f"SELECT id FROM {rows}"
        self.page = (
            f"SELECT id, epoch, state, holder, {now} - changed FROM {rows}"
            " WHERE id > :after ORDER BY id LIMIT :most"
        )
        self.sweep_due = (
            f"UPDATE {tables.about} SET {tables.swept} = {now} WHERE {tables.swept} <= {now} - :age"
        )
        self.sweep_done = f"DELETE FROM {rows} WHERE changed <= {now} - :age AND state = {DONE}"
        self.sweep = (
            f"DELETE FROM {rows} WHERE changed <= {now} - :age AND (holder IS NULL"
            f" OR holder NOT IN (SELECT holder FROM {holders} WHERE {beat} > {now} - :age))"
        )
        self.sweep_holders = (
            f"DELETE FROM {holders} WHERE {beat} <= {now} - :age"
            f" AND holder NOT IN (SELECT holder FROM {rows} WHERE holder IS NOT NULL)"
        )
        self.forget_holder = (
            f"DELETE FROM {holders} WHERE holder = :holder"
            f" AND NOT EXISTS (SELECT 1 FROM {rows} r WHERE r.holder = :holder)"
        )


@functools.lru_cache(maxsize=32)
def _opening(tables: Tables, count: int) -> str:
    """Return the statement that opens `count` rows. Its arguments end with a number."""
    new_rows = " UNION ALL ".join(
        f"SELECT :id{n} AS id, :epoch{n} AS epoch, :fence{n} AS fence, :number{n} AS number"
        for n in range(count)
    )
    return (
        f"INSERT INTO {tables.rows} (id, epoch, state, changed)"
        f" SELECT n.id, n.epoch, {OPEN}, {tables.now} FROM ({new_rows}) n WHERE NOT EXISTS"
        f" (SELECT 1 FROM {tables.rows} f WHERE f.id = n.fence AND f.epoch > n.number)"
        f" {replacing_open_rows(tables.rows, is_mysql=tables.is_mysql)}"
    )


class TableLedger(_ledger.Ledger):
    """A ledger in three tables. Implementations execute its statements."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._sql = Statements(tables)
        self._lock = threading.Lock()
        self._known_holders: set[str] = set()

    @abc.abstractmethod
    def _execute(self, operation: str, statement: str, values: Mapping[str, Any]) -> int:
        """Execute a statement with its own transaction. Return the number of changed rows.

        :param operation: the name of the step, for error messages.
        :raises LedgerFailure: if it fails.
        """

    def _execute_each(
        self, operation: str, statement: str, values: Sequence[Mapping[str, Any]]
    ) -> list[bool | exceptions.LedgerFailure]:
        """Execute a statement for each set of values; return for each whether it changed a row."""
        return _ledger.call_each(
            lambda each: self._execute(operation, statement, each) > 0, [(each,) for each in values]
        )

    @abc.abstractmethod
    def _read(
        self, operation: str, statement: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows.

        :raises LedgerFailure: if it fails.
        """

    def _open(self, rows: Sequence[_ledger.FencedRow[int]]) -> None:
        # A statement changes each row once; the highest epoch is the last one.
        distinct_rows = {row[0]: row for row in sorted(rows)}
        for batch in _ledger.batches([*distinct_rows.values()], _MAX_ROWS_PER_STATEMENT):
            values = {
                f"{name}{n}": value
                for n, row in enumerate(batch)
                for name, value in _arguments(*row).items()
            }
            self._execute("opening", _opening(self._tables, len(batch)), values)

    def _reopen(
        self, id: str, epoch: int, fence: _ledger.Fence
    ) -> bytes | exceptions.NotFound | None:
        while not self._execute("reopening", self._sql.reopen, _arguments(id, epoch, fence)):
            row = self.state(id)
            if row is None:
                return exceptions.NotFound(f"request {id} has no row in ledger {self.digest}")
            if row.state == _ledger.ROW_DONE:
                return row.result
            raised = self.state(fence.id) if fence.id else None
            if row.epoch >= epoch or (raised is not None and raised.epoch > fence.number):
                break
            # The row was created after the statement.
        return None

    def _revoke(
        self, rows: Sequence[_ledger.FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        return self._execute_each("revoking", self._sql.revoke, [_arguments(*row) for row in rows])

    def _drop(self, ids: Sequence[str]) -> None:
        for batch in _ledger.batches(ids, _MAX_ROWS_PER_STATEMENT):
            self._execute("dropping", self._sql.drop, {"ids": sorted(batch)})

    def _claim(self, id: str, epoch: int, holder: str) -> _ledger.Claim:
        if holder not in self._known_holders:
            self._renew(holder)
        while not self._try_claim(id, epoch, holder):
            refused = _ledger.refusal(self.state(id), epoch)
            if refused is not None:
                return refused
            # The row may be claimed now. Either it was opened after the attempt above, or the
            # attempt failed because the holder has no heartbeat, which this records.
            self._renew(holder)
        return _ledger.Claim(_ledger.GRANTED, epoch, None, holder)

    def _try_claim(self, id: str, epoch: int, holder: str) -> bool:
        """Claim the row; return False if it is not OPEN, or the holder has no heartbeat."""
        values = {"id": id, "epoch": epoch, "holder": holder}
        return self._execute("claiming", self._sql.claim, values) > 0

    def _renew(self, holder: str) -> None:
        self._execute("renewing", self._sql.renew, {"holder": holder})
        with self._lock:
            self._known_holders.add(holder)

    def _finish(
        self, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: _ledger.Fence
    ) -> list[bool | exceptions.LedgerFailure]:
        values = [
            {**_arguments(id, epoch, fence), "holder": holder, "result": result}
            for id, epoch, result in finished_rows
        ]
        return self._execute_each("finishing", self._sql.finish, values)

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        values = {"id": id, "epoch": epoch, "holder": holder}
        return self._execute("releasing", self._sql.release, values) > 0

    def _silence(self, holder: str) -> float | None:
        rows = self._read("asking", self._sql.silence, {"holder": holder})
        # After a failover to a server whose clock is behind, heartbeats are in the future.
        return abs(float(rows[0][0])) if rows else None

    def _states(self, ids: Sequence[str]) -> list[_ledger.Row | exceptions.LedgerFailure | None]:
        rows: dict[str, _ledger.Row] = {}
        try:
            for batch in _ledger.batches(ids, _MAX_ROWS_PER_STATEMENT):
                for id, epoch, state, holder, data in self._read(
                    "asking", self._sql.find, {"ids": [*batch]}
                ):
                    # Some drivers, such as psycopg2, return a memoryview.
                    result = None if data is None else bytes(data)
                    rows[id] = _ledger.Row(id, epoch, _ledger.STATES[state], holder, result)
        except exceptions.LedgerFailure as error:
            return [error] * len(ids)
        return [rows.get(id) for id in ids]

    def _ids(self) -> set[str]:
        return {id for (id,) in self._read("asking", self._sql.ids, {})}

    def _list_rows(self, limit: int, after: str | None) -> _ledger.Page:
        # Every id sorts after ''.
        values = {"after": after or "", "most": limit + 1}
        rows = [
            _ledger.Listed(id, epoch, _ledger.STATES[state], holder, max(0.0, float(age)))
            for id, epoch, state, holder, age in self._read("listing", self._sql.page, values)
        ]
        return _ledger.Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        age = {"age": older_than}
        if only_done:
            return self._execute("sweeping", self._sql.sweep_done, age)
        count = self._execute("sweeping", self._sql.sweep, age)
        age = {"age": min(older_than, _ledger.SWEEP_PERIOD_SECONDS)}
        self._execute("sweeping", self._sql.sweep_holders, age)
        return count

    def _is_sweep_due(self) -> bool:
        age = {"age": _ledger.SWEEP_PERIOD_SECONDS}
        return self._execute("sweeping", self._sql.sweep_due, age) > 0

    def close(self) -> None:
        with self._lock:
            holders, self._known_holders = self._known_holders, set()
        try:
            for holder in holders:
                self._execute("closing", self._sql.forget_holder, {"holder": holder})
        except exceptions.LedgerFailure as error:  # A later sweep removes the heartbeats.
            LOG.debug("%s", error)


def _arguments(id: str, epoch: int | None, fence: _ledger.Fence) -> dict[str, Any]:
    return {"id": id, "epoch": epoch, "fence": fence.id, "number": fence.number}
