"""A ledger in a database (PostgreSQL, MariaDB, MySQL, or an sqlite file on one host).

Each step is one statement that names the expected state, so the database decides which of two
callers succeeds. Several steps are one statement or one transaction, so that the database syncs to
disk only once. If a step is refused, the row is read to find the reason; the row may have changed
in between.

Times are those of the database's clock. Tables are created if necessary. They may be in the
database that contains the records of flows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._sql import dialects, request_tables
from wbengine._text import data_formats
from wbengine.transports import _ledger
from wbengine.transports._kinds import Target

__all__ = ["SQLLedger", "check"]

LOG = logging.getLogger(__name__)

_R = TypeVar("_R")
_T = TypeVar("_T")

_OPEN, _CLAIMED, _DONE = request_tables.OPEN, request_tables.CLAIMED, request_tables.DONE

#: Maximum number of connection retries: callers must not wait long for an unavailable database.
_MAX_RETRIES: Final = 2
#: Isolation level for single statements: a transaction would cost two more round trips.
_AUTOCOMMIT: Final = "AUTOCOMMIT"
#: Isolation level for several statements in one transaction.
_READ_COMMITTED: Final = "READ COMMITTED"
#: Maximum number of rows in one statement; databases limit the number of its parameters.
_MAX_ROWS_PER_STATEMENT: Final = 500

#: Condition of statements for engines. MySQL does not change a table that a subquery reads, except
#: through a derived table with a LIMIT.
_FENCE: Final = (
    " AND NOT EXISTS (SELECT 1 FROM (SELECT epoch FROM wbe_ledger WHERE id = :fence LIMIT 1) f"
    " WHERE f.epoch > :number)"
)


class _Statements:
    revoke = sa.text(
        f"DELETE FROM wbe_ledger WHERE id = :id AND state = {_OPEN}"
        f" AND epoch <= COALESCE(:epoch, epoch){_FENCE}"
    )
    drop = sa.text("DELETE FROM wbe_ledger WHERE id IN :ids").bindparams(
        sa.bindparam("ids", expanding=True)
    )
    find = sa.text(
        "SELECT id, epoch, state, holder, result FROM wbe_ledger WHERE id IN :ids"
    ).bindparams(sa.bindparam("ids", expanding=True))
    ids = sa.text("SELECT id FROM wbe_ledger")

    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        self._sweeping(now)
        # A holder without a heartbeat could be considered lost, so a claim requires one.
        self.claim = sa.text(
            f"UPDATE wbe_ledger SET state = {_CLAIMED}, holder = :holder, changed = {now}"
            f" WHERE id = :id AND epoch = :epoch AND state = {_OPEN}"
            " AND EXISTS (SELECT 1 FROM wbe_ledger_holders h WHERE h.holder = :holder)"
        )
        self.finish = sa.text(
            f"UPDATE wbe_ledger SET state = {_DONE}, holder = NULL, result = :result,"
            f" changed = {now} WHERE id = :id AND epoch = :epoch AND state = {_CLAIMED}"
            f" AND holder = :holder{_FENCE}"
        ).bindparams(sa.bindparam("result", type_=sa.LargeBinary))
        self.release = sa.text(
            f"UPDATE wbe_ledger SET state = {_OPEN}, holder = NULL, changed = {now}"
            f" WHERE id = :id AND epoch = :epoch AND state = {_CLAIMED} AND holder = :holder"
        )
        self.reopen = sa.text(
            f"UPDATE wbe_ledger SET epoch = :epoch, state = {_OPEN}, holder = NULL,"
            f" changed = {now} WHERE id = :id AND epoch < :epoch AND state <> {_DONE}{_FENCE}"
        )
        self.renew = dialects.upsert(
            dialect, "wbe_ledger_holders", ("holder", "beat"), ["holder"], given={"beat": now}
        )
        self.silence = sa.text(
            f"SELECT {now} - beat FROM wbe_ledger_holders WHERE holder = :holder"
        )
        self.forget = sa.text(
            "DELETE FROM wbe_ledger_holders WHERE holder = :holder AND NOT EXISTS"
            " (SELECT 1 FROM wbe_ledger l WHERE l.holder = :holder)"
        )
        self.page = sa.text(
            f"SELECT id, epoch, state, holder, {now} - changed FROM wbe_ledger"
            " WHERE id > :after ORDER BY id LIMIT :most"
        )
        self.about = sa.text("SELECT format, digest FROM wbe_ledger_about")
        self.due = sa.text(f"UPDATE wbe_ledger_about SET swept = {now} WHERE swept <= {now} - :age")

    def _sweeping(self, now: str) -> None:
        live = f"(SELECT holder FROM wbe_ledger_holders WHERE beat > {now} - :age)"
        self.sweep = sa.text(
            f"DELETE FROM wbe_ledger WHERE changed <= {now} - :age"
            f" AND (holder IS NULL OR holder NOT IN {live})"
        )
        self.sweep_done = sa.text(
            f"DELETE FROM wbe_ledger WHERE changed <= {now} - :age AND state = {_DONE}"
        )
        self.drop_idle_holders = sa.text(
            f"DELETE FROM wbe_ledger_holders WHERE beat <= {now} - :age AND holder NOT IN"
            " (SELECT holder FROM wbe_ledger WHERE holder IS NOT NULL)"
        )


@functools.lru_cache(maxsize=32)
def _opening(dialect: str, count: int) -> sa.TextClause:
    """Return the statement that opens `count` rows. Names of its arguments end with a number."""
    rows = " UNION ALL ".join(
        f"SELECT :id{n} AS id, :epoch{n} AS epoch, :fence{n} AS fence, :number{n} AS number"
        for n in range(count)
    )
    return sa.text(
        "INSERT INTO wbe_ledger (id, epoch, state, changed)"
        f" SELECT n.id, n.epoch, {_OPEN}, {dialects.now(dialect)} FROM ({rows}) n WHERE NOT EXISTS"
        " (SELECT 1 FROM wbe_ledger f WHERE f.id = n.fence AND f.epoch > n.number)"
        f" {request_tables.replacing_open_rows(dialect)}"
    )


def _read_committed(connection: Any, record: Any) -> None:
    """Set the level of a session of MySQL. At its default level, checks of fences lock rows."""
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {_READ_COMMITTED}")


def _make_engine(options: _sql.DatabaseOptions) -> sa.Engine:
    engine = _sql.make_engine(options)
    if options.dialect == dialects.MYSQL:
        sa.event.listen(engine, "connect", _read_committed)
    return engine


def check(place: str) -> _sql.DatabaseOptions:
    """Parse the URL of a ledger without connecting.

    :raises ValueError: if it is not valid.
    :raises ImportError: if the driver of the database is not installed.
    """
    options = _sql.parse(place)
    if options.in_memory:
        raise ValueError(
            "a ledger in SQLite must be a file; for a ledger in the memory of one process,"
            " use memory://NAME"
        )
    if "max_retries" not in sa.make_url(place).query:
        options = dataclasses.replace(options, max_retries=_MAX_RETRIES)
    engine_args = dict(options.engine_args)
    if options.dialect != dialects.SQLITE:
        engine_args["isolation_level"] = _AUTOCOMMIT
        # Each step ends its transaction. A rollback would cost MySQL one more round trip.
        engine_args["pool_reset_on_return"] = None
    options = dataclasses.replace(options, engine_args=engine_args)
    _sql.make_engine(options).dispose()
    return options


class _SharedEngines:
    """The connections to servers, which all ledgers of the process with the same URL share.

    A conductor opens a ledger for each flow that it runs. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, sa.Engine] = {}
        self._users: Counter[str] = Counter()
        os.register_at_fork(after_in_child=self._renew_lock)

    def acquire(self, place: str, options: _sql.DatabaseOptions) -> sa.Engine:
        with self._lock:
            if place not in self._engines:
                self._engines[place] = _make_engine(options)
            self._users[place] += 1
            return self._engines[place]

    def release(self, place: str) -> None:
        """Close the connections if no other ledger uses them."""
        with self._lock:
            self._users[place] -= 1
            engine = None if self._users[place] else self._engines.pop(place)
        if engine is not None:
            _sql.dispose(engine)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


_shared: Final = _SharedEngines()


class _NoReply(exceptions.LedgerFailure):
    """The connection was lost during a statement, which may have been executed."""


class SQLLedger(_ledger.Ledger):
    """A ledger in three tables of a database, which are created if necessary.

    :raises ValueError: if the URL is not valid.
    :raises ImportError: if the driver of the database is not installed.
    :raises LedgerFailure: if the database cannot be used.
    """

    def __init__(self, place: str, result_ttl: float | None = _ledger.STALE_AFTER_SECONDS) -> None:
        options = check(place)
        url = options.url
        # Show only these parts of the URL: the others may be secret.
        self._shown = sa.URL.create(
            options.dialect, host=url.host, port=url.port, database=url.database
        ).render_as_string()
        servers = options.dialect != dialects.SQLITE
        self._ends = contextlib.ExitStack()
        if servers:
            self._engine = _shared.acquire(place, options)
            self._ends.callback(_shared.release, place)
        else:
            self._engine = _make_engine(options)
            self._ends.callback(_sql.dispose, self._engine)
        self._batch_engine = (
            self._engine.execution_options(isolation_level=_READ_COMMITTED)
            if servers
            else self._engine
        )
        self._sql = _Statements(options.dialect)
        # A read transaction of an SQLite file does not wait for writers. On a server it would only
        # add round trips.
        self._reads_as_write = servers
        self._lock = threading.Lock()
        self._known_holders: set[str] = set()
        # Id, epoch and holder of claims without a reply, whose rows may be claimed.
        self._unanswered_claims: set[tuple[str, int, str]] = set()
        try:
            self._digest = self._load_digest()
            self.sweep_when_due(result_ttl)
        except BaseException:
            self._ends.close()
            raise

    @property
    def digest(self) -> str:
        return self._digest

    def _open(self, rows: Sequence[_ledger.FencedRow[int]]) -> None:
        # A statement changes each row once; the highest epoch is the last one.
        distinct_rows = {row[0]: row for row in sorted(rows)}
        for batch in _batches([*distinct_rows.values()]):
            values = {
                f"{name}{n}": value
                for n, (id, epoch, fence) in enumerate(batch)
                for name, value in _arguments(id, epoch, fence).items()
            }
            self._execute("opening", _opening(self._engine.dialect.name, len(batch)), values)

    def _try_reopen(self, id: str, epoch: int, fence: _ledger.Fence) -> bool:
        return self._execute("reopening", self._sql.reopen, _arguments(id, epoch, fence)) > 0

    def _revoke(
        self, rows: Sequence[_ledger.FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        values = [_arguments(*row) for row in rows]
        results = self._execute_each("revoking", self._sql.revoke, values)
        if not any(isinstance(result, _NoReply) for result in results):
            return results
        # The first attempt may have removed rows.
        results = self._execute_each("revoking", self._sql.revoke, values)
        rows_now = self._states([id for id, _, _ in rows])
        return [
            None if result is False and row is None else result
            for result, row in zip(results, rows_now, strict=True)
        ]

    def _drop(self, ids: Sequence[str]) -> None:
        for batch in _batches(ids):
            self._execute("dropping", self._sql.drop, {"ids": sorted(batch)})

    def _claim(self, id: str, epoch: int, holder: str) -> _ledger.Claim:
        """See `Ledger`. A claim without a reply is repeated once.

        A row that such a claim has claimed is granted, because its holder has not started the task.
        """
        try:
            return self._claim_once(id, epoch, holder)
        except _NoReply:
            return self._claim_once(id, epoch, holder)

    def _claim_once(self, id: str, epoch: int, holder: str) -> _ledger.Claim:
        claim = super()._claim(id, epoch, holder)
        if (id, epoch, holder) in self._unanswered_claims:
            self._unanswered_claims.discard((id, epoch, holder))
            if claim.verdict == _ledger.HELD and claim.holder == holder:
                return _ledger.Claim(_ledger.GRANTED, epoch, None, holder)
        return claim

    def _try_claim(self, id: str, epoch: int, holder: str) -> bool:
        if holder not in self._known_holders:
            self.renew(holder)
        values = {"id": id, "epoch": epoch, "holder": holder}
        try:
            return self._execute("claiming", self._sql.claim, values) > 0
        except _NoReply:
            self._unanswered_claims.add((id, epoch, holder))
            raise

    def _renew(self, holder: str) -> None:
        self._execute("renewing", self._sql.renew, {"holder": holder})
        with self._lock:
            self._known_holders.add(holder)

    def _silence(self, holder: str) -> float | None:
        def work(connection: sa.Connection) -> Any:
            return connection.execute(self._sql.silence, {"holder": holder}).scalar()

        silent = self._run("asking", work, self._reads_as_write)
        # After a failover to a server whose clock is behind, heartbeats are in the future.
        return None if silent is None else abs(float(silent))

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

    def _states(self, ids: Sequence[str]) -> list[_ledger.Row | exceptions.LedgerFailure | None]:
        def work(connection: sa.Connection) -> dict[str, _ledger.Row]:
            return {
                row.id: _ledger.Row(
                    row.id,
                    row.epoch,
                    _ledger.STATES[row.state],
                    row.holder,
                    None if row.result is None else bytes(row.result),
                )
                for batch in _batches(ids)
                for row in connection.execute(self._sql.find, {"ids": batch})
            }

        try:
            rows = self._run("asking", work, self._reads_as_write)
        except exceptions.LedgerFailure as error:
            return [error] * len(ids)
        return [rows.get(id) for id in ids]

    def _ids(self) -> set[str]:
        def work(connection: sa.Connection) -> set[str]:
            return set(connection.execute(self._sql.ids).scalars())

        return self._run("asking", work, self._reads_as_write)

    def _list_rows(self, limit: int, after: str | None) -> _ledger.Page:
        # Every id sorts after ''.
        arguments = {"after": after or "", "most": limit + 1}

        def work(connection: sa.Connection) -> list[_ledger.Listed]:
            return [
                _ledger.Listed(id, epoch, _ledger.STATES[state], holder, max(0.0, float(age)))
                for id, epoch, state, holder, age in connection.execute(self._sql.page, arguments)
            ]

        rows = self._run("listing", work, self._reads_as_write)
        return _ledger.Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        if only_done:
            return self._execute("sweeping", self._sql.sweep_done, {"age": older_than})
        count = self._execute("sweeping", self._sql.sweep, {"age": older_than})
        self._execute("sweeping", self._sql.drop_idle_holders, {"age": older_than})
        return count

    def close(self) -> None:
        with self._lock:
            holders, self._known_holders = self._known_holders, set()
        try:
            for holder in holders:
                self._execute("closing", self._sql.forget, {"holder": holder})
        except exceptions.LedgerFailure as error:  # A later sweep removes the heartbeats.
            LOG.debug("%s", error)
        self._ends.close()

    def _execute(self, operation: str, statement: sa.TextClause, values: dict[str, Any]) -> int:
        return self._run(
            operation, lambda connection: connection.execute(statement, values).rowcount
        )

    def _execute_each(
        self, operation: str, statement: sa.TextClause, values: Sequence[dict[str, Any]]
    ) -> list[bool | exceptions.LedgerFailure]:
        """Execute a statement for each set of values; return for each whether it changed a row."""
        if len(values) == 1:  # A single statement needs no transaction.
            return _ledger.call_each(
                lambda parameters: self._execute(operation, statement, parameters) > 0,
                [(values[0],)],
            )
        # The same order in all processes prevents deadlocks.
        order = sorted(range(len(values)), key=lambda number: values[number]["id"])
        outcomes: list[bool | exceptions.LedgerFailure] = [False] * len(values)

        def work(connection: sa.Connection) -> None:
            for number in order:
                outcomes[number] = connection.execute(statement, values[number]).rowcount > 0

        try:
            self._run(operation, work, on=self._batch_engine)
        except exceptions.LedgerFailure as error:
            return [error] * len(values)
        return outcomes

    def _run(
        self,
        operation: str,
        work: Callable[[sa.Connection], _R],
        write: bool = True,
        on: sa.Engine | None = None,
    ) -> _R:
        try:
            return _sql.transact(
                on or self._engine,
                f"ledger {self._shown}: {operation}",
                work,
                write=write,
                kind=exceptions.LedgerFailure,
            )
        except exceptions.LedgerFailure as error:
            reason = error.__context__
            if isinstance(reason, sa.exc.DBAPIError) and reason.connection_invalidated:
                raise _NoReply(*error.args) from error.__cause__
            raise

    def _load_digest(self) -> str:
        about = self._run("opening", self._about)
        if about is None:
            self._run("making its tables", request_tables.create, on=self._batch_engine)
            about = self._run("opening", self._about)
        if about is None:
            raise exceptions.LedgerFailure(f"ledger {self._shown}: its tables cannot be created")
        data_formats.LEDGER.check(f"ledger {self._shown}", about.format, exceptions.LedgerFailure)
        return str(about.digest)

    def _about(self, connection: sa.Connection) -> Any:
        if not request_tables.exist(connection):
            return None
        return connection.execute(self._sql.about).first()

    def __str__(self) -> str:
        return self._shown

    def _is_sweep_due(self) -> bool:
        return self._execute("sweeping", self._sql.due, {"age": _ledger.SWEEP_PERIOD_SECONDS}) > 0


def _arguments(id: str, epoch: int | None, fence: _ledger.Fence) -> dict[str, Any]:
    return {"id": id, "epoch": epoch, "fence": fence.id, "number": fence.number}


def _batches(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(rows), _MAX_ROWS_PER_STATEMENT):
        yield rows[start : start + _MAX_ROWS_PER_STATEMENT]


def is_at(place: str, broker: object) -> bool:
    address: object = getattr(broker, "address", None)
    return address is not None and check(place).address == address


def open_place(place: str, result_ttl: float | None) -> SQLLedger:
    return SQLLedger(place, result_ttl)


def of_broker(target: Target, role: str, result_ttl: float | None) -> SQLLedger:
    """Open the ledger in the database of a transport."""
    return SQLLedger(str(target.url), result_ttl)
