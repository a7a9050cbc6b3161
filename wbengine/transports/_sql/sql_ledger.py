"""A ledger in a database (PostgreSQL, MariaDB, MySQL, or an sqlite file on one host).

Several steps are one statement or one transaction, so that the database syncs to disk only once.

Times are those of the database's clock. Tables are created if necessary. They may be in the
database that contains the records of flows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._sql import dialects
from wbengine._text import data_formats
from wbengine.transports import _ledger
from wbengine.transports._kinds import Target
from wbengine.transports._sql import request_tables
from wbengine.transports._table_ledger import TableLedger, Tables

__all__ = ["SQLLedger", "check"]

_R = TypeVar("_R")

_ABOUT: Final = sa.text("SELECT format, digest FROM wbe_ledger_about")
#: Maximum number of connection retries: callers must not wait long for an unavailable database.
_MAX_RETRIES: Final = 2
#: Isolation level for single statements: a transaction would cost two more round trips.
_AUTOCOMMIT: Final = "AUTOCOMMIT"
#: Isolation level for several statements in one transaction.
_READ_COMMITTED: Final = "READ COMMITTED"


@functools.lru_cache(maxsize=64)
def _prepared(statement: str) -> sa.TextClause:
    special: tuple[sa.BindParameter[Any], ...] = (
        sa.bindparam("ids", expanding=True),
        sa.bindparam("result", type_=sa.LargeBinary),
    )
    return sa.text(statement).bindparams(*(each for each in special if f":{each.key}" in statement))


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


class SQLLedger(TableLedger):
    """A ledger in three tables of a database, which are created if necessary.

    :raises ValueError: if the URL is not valid.
    :raises ImportError: if the driver of the database is not installed.
    :raises LedgerFailure: if the database cannot be used.
    """

    def __init__(self, place: str, result_ttl: float | None = _ledger.STALE_AFTER_SECONDS) -> None:
        options = check(place)
        tables = Tables(
            rows="wbe_ledger", holders="wbe_ledger_holders", beat="beat",
            about="wbe_ledger_about", swept="swept", now=dialects.now(options.dialect),
            is_mysql=options.dialect == dialects.MYSQL,
        )  # fmt: skip
        super().__init__(tables)
        url = options.url
        # Show only these parts of the URL: the others may be secret.
        self._shown = sa.URL.create(
            options.dialect, host=url.host, port=url.port, database=url.database
        ).render_as_string()
        # A read transaction of an SQLite file does not wait for writers. On a server it would only
        # add round trips.
        self._reads_as_write = options.dialect != dialects.SQLITE
        self._ends = contextlib.ExitStack()
        if options.dialect == dialects.SQLITE:
            self._engine = self._batch_engine = _make_engine(options)
            self._ends.callback(_sql.dispose, self._engine)
        else:
            self._engine = _shared.acquire(place, options)
            self._ends.callback(_shared.release, place)
            self._batch_engine = self._engine.execution_options(isolation_level=_READ_COMMITTED)
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

    def _revoke(
        self, rows: Sequence[_ledger.FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        results = super()._revoke(rows)
        if not any(isinstance(result, _NoReply) for result in results):
            return results
        # The first attempt may have removed rows.
        results = super()._revoke(rows)
        rows_now = self._states([id for id, _, _ in rows])
        return [
            None if result is False and row is None else result
            for result, row in zip(results, rows_now, strict=True)
        ]

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
        try:
            return super()._try_claim(id, epoch, holder)
        except _NoReply:
            self._unanswered_claims.add((id, epoch, holder))
            raise

    def close(self) -> None:
        super().close()
        self._ends.close()

    def _execute(self, operation: str, statement: str, values: Mapping[str, Any]) -> int:
        return self._run(
            operation, lambda connection: connection.execute(_prepared(statement), values).rowcount
        )

    def _read(
        self, operation: str, statement: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        def work(connection: sa.Connection) -> list[Any]:
            return [*connection.execute(_prepared(statement), values)]

        return self._run(operation, work, self._reads_as_write)

    def _execute_each(
        self, operation: str, statement: str, values: Sequence[Mapping[str, Any]]
    ) -> list[bool | exceptions.LedgerFailure]:
        if len(values) == 1:  # A single statement needs no transaction.
            return super()._execute_each(operation, statement, values)
        # The same order in all processes prevents deadlocks.
        order = sorted(range(len(values)), key=lambda number: values[number]["id"])
        outcomes: list[bool | exceptions.LedgerFailure] = [False] * len(values)

        def work(connection: sa.Connection) -> None:
            for number in order:
                outcomes[number] = (
                    connection.execute(_prepared(statement), values[number]).rowcount > 0
                )

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
        except exceptions.RecordTooLarge as error:
            raise exceptions.LedgerFailure(f"ledger {self._shown}: {operation}: {error}") from error
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
        return connection.execute(_ABOUT).first()

    def __str__(self) -> str:
        return self._shown


def is_at(place: str, broker: object) -> bool:
    address: object = getattr(broker, "address", None)
    return address is not None and check(place).address == address


def open_place(place: str, result_ttl: float | None) -> SQLLedger:
    return SQLLedger(place, result_ttl)


def of_broker(target: Target, role: str, result_ttl: float | None) -> SQLLedger:
    """Open the ledger in the database of a transport."""
    return SQLLedger(str(target.url), result_ttl)
