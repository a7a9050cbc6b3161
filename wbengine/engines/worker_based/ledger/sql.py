"""A ledger in a database, for processes of any host that reach it.

PostgreSQL, MariaDB or MySQL; or an sqlite file, on one host.

Each step is one statement that names the state it expects, so the database itself lets one of two
callers win; nothing is read first and written then.  Several that are asked for together are one
statement or one transaction, which the database writes to its disk once.  Where a step was refused,
the row is read to tell why: it may have moved on in between, as with every answer that was true
when it was given.

Times are those of the database's own clock.  The tables are made when they are not there, and may
be in the same database as the records of flows.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._sql import dialects
from wbengine.engines.worker_based.ledger import base

__all__ = ["SQLLedger", "check"]

LOG = logging.getLogger(__name__)

_R = TypeVar("_R")

#: States, as they are written.
_OPEN, _CLAIMED, _DONE = 0, 1, 2
_STATES: Final[tuple[base.State, ...]] = (base.ROW_OPEN, base.ROW_CLAIMED, base.ROW_DONE)

#: The layout of the tables.
_FORMAT: Final = 1

#: How often a connection is tried again.  Whoever asks has a queue to give the request back to, and
#: beats to send meanwhile: it is not to wait long for a database that is away.
_RETRIES: Final = 2
#: A step is one statement: what would begin and end its transaction is not worth two more trips.
_EACH_ITS_OWN: Final = "AUTOCOMMIT"
#: Unlike several of them.
_TOGETHER: Final = "READ COMMITTED"
#: Rows that one statement names at most: databases limit how many values it may have.
_MOST: Final = 500
#: Who makes the tables excludes others who do; any number, but always the same one.
_MAKING: Final = 7_760_269_180_342

_metadata: Final = sa.MetaData()
sa.Table(
    "wbe_ledger",
    _metadata,
    sa.Column("id", dialects.KEY, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("state", sa.SmallInteger, nullable=False),
    sa.Column("holder", dialects.KEY),
    sa.Column("result", dialects.BYTES),
    sa.Column("changed", sa.Double, nullable=False),
    **dialects.TABLE,
)
sa.Table(
    "wbe_ledger_holders",
    _metadata,
    sa.Column("holder", dialects.KEY, primary_key=True),
    sa.Column("beat", sa.Double, nullable=False),
    **dialects.TABLE,
)
# The last one to be made: when it has its row, the others are there.
sa.Table(
    "wbe_ledger_about",
    _metadata,
    sa.Column("format", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", dialects.KEY, nullable=False),
    sa.Column("swept", sa.Double, nullable=False),
    **dialects.TABLE,
)
_TABLES: Final = ("wbe_ledger", "wbe_ledger_holders", "wbe_ledger_about")


class _Statements:
    """The steps, in the words of one kind of database."""

    revoke = sa.text(
        f"DELETE FROM wbe_ledger WHERE id = :id AND state = {_OPEN}"
        " AND epoch <= COALESCE(:epoch, epoch)"
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
        self.open = dialects.upsert(
            dialect,
            "wbe_ledger",
            ("id", "epoch", "state", "changed"),
            ["id"],
            keep=("epoch", "state", "changed"),
            given={"state": str(_OPEN), "changed": now},
        )
        # A holder that nobody heard of could be taken for a dead one.
        self.claim = sa.text(
            f"UPDATE wbe_ledger SET state = {_CLAIMED}, holder = :holder, changed = {now}"
            f" WHERE id = :id AND epoch = :epoch AND state = {_OPEN}"
            " AND EXISTS (SELECT 1 FROM wbe_ledger_holders h WHERE h.holder = :holder)"
        )
        self.finish = sa.text(
            f"UPDATE wbe_ledger SET state = {_DONE}, holder = NULL, result = :result,"
            f" changed = {now} WHERE id = :id AND epoch = :epoch AND state = {_CLAIMED}"
            " AND holder = :holder"
        ).bindparams(sa.bindparam("result", type_=sa.LargeBinary))
        self.release = sa.text(
            f"UPDATE wbe_ledger SET state = {_OPEN}, holder = NULL, changed = {now}"
            f" WHERE id = :id AND epoch = :epoch AND state = {_CLAIMED} AND holder = :holder"
        )
        self.reopen = sa.text(
            f"UPDATE wbe_ledger SET epoch = :epoch, state = {_OPEN}, holder = NULL,"
            f" changed = {now} WHERE id = :id AND epoch < :epoch AND state <> {_DONE}"
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
        self.tell = dialects.upsert(
            dialect,
            "wbe_ledger_about",
            ("format", "digest", "swept"),
            ["format"],
            keep=("digest", "swept"),
            given={"format": str(_FORMAT), "swept": now},
        )
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
        self.sweep_holders = sa.text(
            f"DELETE FROM wbe_ledger_holders WHERE beat <= {now} - :age AND holder NOT IN"
            " (SELECT holder FROM wbe_ledger WHERE holder IS NOT NULL)"
        )


def check(place: str) -> _sql.Options:
    """Understand the URL of a ledger, without connecting.

    :raises ValueError: it is none.
    :raises ImportError: the database's driver is not installed.
    """
    told = _sql.parse(place)
    if told.in_memory:
        raise ValueError("a ledger in the memory of one process is memory://NAME")
    if "max_retries" not in sa.make_url(place).query:
        told = dataclasses.replace(told, max_retries=_RETRIES)
    engine_args = dict(told.engine_args)
    if told.dialect != dialects.SQLITE:
        engine_args["isolation_level"] = _EACH_ITS_OWN
    told = dataclasses.replace(told, engine_args=engine_args)
    _sql.make_engine(told).dispose()
    return told


class SQLLedger(base.Ledger):
    """Rows in three tables of a database, made when they are not there.

    :raises ValueError: the URL is wrong.
    :raises ImportError: the database's driver is not installed.
    :raises LedgerFailure: the database cannot be used.
    """

    def __init__(self, place: str, result_ttl: float | None = base.STALE_AFTER) -> None:
        told = check(place)
        url = told.url
        # Whatever else is in a URL may be a secret.
        self._shown = sa.URL.create(
            told.dialect, host=url.host, port=url.port, database=url.database
        ).render_as_string()
        self._engine = _sql.make_engine(told)
        servers = told.dialect != dialects.SQLITE
        self._several = (
            self._engine.execution_options(isolation_level=_TOGETHER) if servers else self._engine
        )
        self._sql = _Statements(told.dialect)
        # Readers of a file need not wait for who writes; servers would be asked for more than that.
        self._reads = servers
        self._lock = threading.Lock()
        self._known_holders: set[str] = set()
        try:
            self._digest = self._find_or_make()
            self.sweep_when_due(result_ttl)
        except BaseException:
            _sql.dispose(self._engine)
            raise

    @property
    def digest(self) -> str:
        return self._digest

    # -- the engine

    def _open(self, rows: Sequence[tuple[str, int]]) -> None:
        made = [{"id": id, "epoch": epoch} for id, epoch in sorted(rows)]
        self._run("opening", lambda connection: connection.execute(self._sql.open, made))

    def _try_reopen(self, id: str, epoch: int) -> bool:
        return self._changes("reopening", self._sql.reopen, {"id": id, "epoch": epoch}) > 0

    def _revoke(
        self, rows: Sequence[tuple[str, int | None]]
    ) -> list[bool | exceptions.LedgerFailure]:
        what = [{"id": id, "epoch": epoch} for id, epoch in rows]
        return self._steps("revoking", self._sql.revoke, what)

    def _drop(self, ids: Sequence[str]) -> None:
        for some in _portions(ids):
            self._changes("dropping", self._sql.drop, {"ids": sorted(some)})

    # -- workers

    def _try_claim(self, id: str, epoch: int, holder: str) -> bool:
        if holder not in self._known_holders:
            self.renew(holder)
        what = {"id": id, "epoch": epoch, "holder": holder}
        return self._changes("claiming", self._sql.claim, what) > 0

    def _renew(self, holder: str) -> None:
        self._changes("renewing", self._sql.renew, {"holder": holder})
        with self._lock:
            self._known_holders.add(holder)

    def _silence(self, holder: str) -> float | None:
        def work(connection: sa.Connection) -> Any:
            return connection.execute(self._sql.silence, {"holder": holder}).scalar()

        silent = self._run("asking", work, self._reads)
        return None if silent is None else max(0.0, float(silent))

    def _finish(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> list[bool | exceptions.LedgerFailure]:
        what = [
            {"id": id, "epoch": epoch, "holder": holder, "result": result}
            for id, epoch, result in ended
        ]
        return self._steps("finishing", self._sql.finish, what)

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        what = {"id": id, "epoch": epoch, "holder": holder}
        return self._changes("releasing", self._sql.release, what) > 0

    # -- looking

    def _states(self, ids: Sequence[str]) -> list[base.Row | exceptions.LedgerFailure | None]:
        def work(connection: sa.Connection) -> dict[str, base.Row]:
            return {
                row.id: base.Row(
                    row.id,
                    row.epoch,
                    _STATES[row.state],
                    row.holder,
                    None if row.result is None else bytes(row.result),
                )
                for some in _portions(ids)
                for row in connection.execute(self._sql.find, {"ids": some})
            }

        try:
            found = self._run("asking", work, self._reads)
        except exceptions.LedgerFailure as error:
            return [error] * len(ids)
        return [found.get(id) for id in ids]

    def ids(self) -> set[str]:
        def work(connection: sa.Connection) -> set[str]:
            return set(connection.execute(self._sql.ids).scalars())

        return self._run("asking", work, self._reads)

    def list_rows(self, limit: int = 100, after: str | None = None) -> base.Page:
        # No id is an empty text.
        told = {"after": after or "", "most": base.check_limit(limit) + 1}

        def work(connection: sa.Connection) -> list[base.Listed]:
            return [
                base.Listed(id, epoch, _STATES[state], holder, max(0.0, float(age)))
                for id, epoch, state, holder, age in connection.execute(self._sql.page, told)
            ]

        found = self._run("listing", work, self._reads)
        return base.Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        if only_done:
            return self._changes("sweeping", self._sql.sweep_done, {"age": older_than})
        count = self._changes("sweeping", self._sql.sweep, {"age": older_than})
        self._changes("sweeping", self._sql.sweep_holders, {"age": older_than})
        return count

    def close(self) -> None:
        with self._lock:
            holders, self._known_holders = self._known_holders, set()
        try:
            for holder in holders:
                self._changes("closing", self._sql.forget, {"holder": holder})
        except exceptions.LedgerFailure as error:  # swept one day
            LOG.debug("%s", error)
        _sql.dispose(self._engine)

    # -- below

    def _changes(self, what: str, statement: sa.TextClause, values: dict[str, Any]) -> int:
        """How many rows a statement changed."""
        return self._run(what, lambda connection: connection.execute(statement, values).rowcount)

    def _steps(
        self, what: str, statement: sa.TextClause, values: Sequence[dict[str, Any]]
    ) -> list[bool | exceptions.LedgerFailure]:
        """Whether a statement changed a row, with each of these values."""
        if len(values) == 1:  # needs no transaction
            return base.each_of(lambda one: self._changes(what, statement, one) > 0, [(values[0],)])
        # In one order everywhere: nobody waits for who waits for him.
        order = sorted(range(len(values)), key=lambda number: values[number]["id"])
        told: list[bool | exceptions.LedgerFailure] = [False] * len(values)

        def work(connection: sa.Connection) -> None:
            for number in order:
                told[number] = connection.execute(statement, values[number]).rowcount > 0

        try:
            self._run(what, work, on=self._several)
        except exceptions.LedgerFailure as error:
            return [error] * len(values)
        return told

    def _run(
        self,
        what: str,
        work: Callable[[sa.Connection], _R],
        write: bool = True,
        on: sa.Engine | None = None,
    ) -> _R:
        return _sql.transact(
            on or self._engine,
            f"ledger {self._shown}: {what}",
            work,
            write=write,
            kind=exceptions.LedgerFailure,
        )

    def _find_or_make(self) -> str:
        found = self._run("opening", self._about)
        if found is None:
            self._run("making its tables", self._make)
            found = self._run("opening", self._about)
        if found is None or found.format != _FORMAT:
            self._refuse(found)
        return str(found.digest)

    def _refuse(self, found: Any) -> NoReturn:
        if found is None:
            raise exceptions.LedgerFailure(f"ledger {self._shown}: its tables cannot be made")
        raise exceptions.LedgerFailure(
            f"ledger {self._shown} has format {found.format}, this version of wbengine knows"
            f" {_FORMAT}: use the version that made it"
        )

    def _about(self, connection: sa.Connection) -> Any:
        if not sa.inspect(connection).has_table(_TABLES[-1]):
            return None
        return connection.execute(self._sql.about).first()

    def _make(self, connection: sa.Connection) -> None:
        postgresql = connection.dialect.name == dialects.POSTGRESQL
        if postgresql:  # two who make the same table are not told to wait there: one fails
            connection.execute(sa.text(f"SELECT pg_advisory_lock({_MAKING})"))
        try:
            for name in _TABLES:
                table = _metadata.tables[name]
                connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            connection.execute(self._sql.tell, {"digest": f"sql-{uuid.uuid4().hex}"})
        finally:
            if postgresql:
                connection.execute(sa.text(f"SELECT pg_advisory_unlock({_MAKING})"))

    def __str__(self) -> str:
        return self._shown

    def _is_sweep_due(self) -> bool:
        return self._changes("sweeping", self._sql.due, {"age": base.SWEEP_EVERY}) > 0


def _portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many at a time as one statement may name."""
    for first in range(0, len(ids), _MOST):
        yield ids[first : first + _MOST]
