"""A database as a backend."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._crash import crashpoint
from wbengine._sql import dialects
from wbengine.persistence import base, leases, models
from wbengine.persistence import listing as queries
from wbengine.persistence.backends.sql import layout, listing, reading, rows, tables, writing
from wbengine.persistence.backends.sql.statements import Statements
from wbengine.signals import Signal
from wbengine.types.outline import Outline

__all__ = ["SQLBackend", "SQLConnection"]

_T = TypeVar("_T")

#: So many flows are asked for at a time: databases take no statements of any length.
_MOST_UUIDS: Final = 500


class SQLBackend(base.Backend):
    """Keeps records in tables of an SQL database; their names begin with `wbe_`.

    `connection` is its URL: 'sqlite:////path/of.db' ('sqlite://' is one in memory, for tests),
    'mysql://user:password@host/database' (MariaDB and MySQL, by PyMySQL), or 'postgresql://...'
    (by psycopg); one with a driver ('mysql+mysqldb://') is taken as it is.  The other options are
    those of `_sql.Options`; in a URL's query, what is none of them is the driver's.

    An empty database gets its tables when it is first written to; one with tables of an older
    layout is changed by `Connection.upgrade` only, and refused until then.

    :raises ValueError: the URL or an option is wrong.
    :raises ImportError: a driver is not installed; the text says how to.
    """

    #: The revision of the current layout.
    head: Final = layout.HEAD

    def __init__(self, conf: Mapping[str, Any] | None = None) -> None:
        super().__init__(conf)
        self.options = self._parsed()
        self.engine: sa.Engine = _sql.make_engine(self.options)
        self.statements = Statements(self.options.dialect)
        #: What turns are written with that are one statement; None: they are not.
        self.turn_engine: Final = _sql.turn_engine(self.options)
        #: Whether turns have a way of their own; it logs no statements.
        self.has_fast_turns: Final = not self.options.log_statements and (
            _sql.writer_of(self.engine) is not None or self.turn_engine is not None
        )
        self._ready = False
        self._preparing = threading.Lock()

    def _parsed(self) -> _sql.Options:
        """What the configuration says."""
        told = dict(self._conf)
        url = str(told.pop("connection", ""))
        return _sql.parse(url, told)

    def get_connection(self) -> SQLConnection:
        """Costs nothing: what it does is done with a connection of the pool."""
        return SQLConnection(self)

    def close(self) -> None:
        self._ready = False
        _sql.dispose(self.engine)
        if self.turn_engine is not None:
            _sql.dispose(self.turn_engine)

    def upgrade(self) -> None:
        """Bring the tables to the current layout."""
        layout.upgrade(self.engine)
        self._ready = True

    def revision(self) -> str | None:
        """The revision of the layout that is there, None: there is no table yet."""
        if self._is_no_file():
            return None
        what = "Looking up the layout of the database"
        found = _sql.transact(self.engine, what, layout.found, write=False)
        self._ready = self._ready or found == layout.HEAD
        return found

    def is_there(self) -> bool:
        """Whether there are tables to read.

        :raises StorageFailure: their layout is not the current one.
        """
        if not self._ready:
            revision = self.revision()
            if revision is None:
                return False
            layout.check(revision)
        return True

    def keep_new_books(
        self,
        books: Iterable[models.LogBook],
        first: Callable[[sa.Connection], bool] | None = None,
    ) -> bool:
        """Keep books that nobody else can have, with their flows, in one transaction.

        :param first: what that begins with; where it returns False, so does this, and none is kept.
        """
        new = [writing.NewBook(book) for book in books]
        if not new:
            return False

        def work(connection: sa.Connection) -> bool:
            if first is not None and not first(connection):
                return False
            writing.put_new_books(connection, self.statements, new)
            return True

        self.prepare()
        return _sql.transact(self.engine, f"Keeping {len(new)} log books", work)

    def prepare(self) -> None:
        """Make the tables where there are none.

        :raises StorageFailure: there are tables of another layout.
        """
        if not self._ready:
            with self._preparing:
                if not self.is_there():
                    self.upgrade()

    def problems(self) -> list[str]:
        """What an sqlite file is found to have wrong, besides its rows; servers see to theirs.

        Cost: that of reading all of it.
        """
        if self.options.dialect != dialects.SQLITE or not self.is_there():
            return []

        def work(connection: sa.Connection) -> list[str]:
            # The second one compares indexes with tables, and wants a file that is well formed.
            for check in ("quick_check", "integrity_check"):
                found = connection.exec_driver_sql(f"PRAGMA {check}").scalars().all()
                if found != ["ok"]:
                    return [text.replace("\n", "; ") for text in found]
            return []

        return _sql.transact(self.engine, "Checking the database", work, write=False)

    def _is_no_file(self) -> bool:
        """Whether opening the database would make it."""
        path = self.options.url.database
        if self.options.dialect != dialects.SQLITE or self.options.in_memory or path is None:
            return False
        return not path.startswith("file:") and not os.path.exists(path)

    def __repr__(self) -> str:
        return f"<SQLBackend {self.options.url.render_as_string()}>"


class SQLConnection(base.Connection):
    """Each call is one transaction on a connection of the backend's pool; none is held between.

    So it may be used by any thread.  A write whose commit was under way when the database went
    away fails, and may have taken place: it may be written again.
    """

    def __init__(self, backend: SQLBackend) -> None:
        self._backend = backend
        self._sql = backend.statements

    @property
    def backend(self) -> SQLBackend:
        return self._backend

    def upgrade(self) -> None:
        self._backend.upgrade()

    def validate(self) -> None:
        """Raise if the layout of the tables is not the current one.

        :raises StorageFailure: it is not; the text says which it is, and which is wanted.
        """
        layout.check(self._backend.revision())

    # -- reading --------------------------------------------------------------------------------

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        return self._read("log book", book_uuid, lambda it: reading.book(it, book_uuid, lazy))

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        if not self._backend.is_there():
            return iter(())
        return self._transact("Reading log books", lambda it: reading.books(it, lazy), write=False)

    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        return self._read("log book", book_uuid, lambda it: reading.flows(it, book_uuid, lazy))

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        return self._read("flow detail", fd_uuid, lambda it: reading.flow(it, fd_uuid, lazy))

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        return self._read(
            "flow detail", flow_uuid, lambda it: reading.changes(it, flow_uuid, since)
        )

    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        read = self._read_many("Looking what has changed", self._sql.marks, flow_uuids)
        return {uuid: " ".join(map(str, told)) for uuid, *told in read}

    def find_flows(self, query: queries.Query) -> base.Page:
        if not self._backend.is_there():
            return base.Page([], None)
        return self._transact("Listing flows", lambda it: listing.page(it, query), write=False)

    def get_outline(self, flow_uuid: str) -> Outline | None:
        def work(connection: sa.Connection) -> Outline | None:
            row = connection.execute(self._sql.outline, {"flow_uuid": flow_uuid}).first()
            if row is None:
                raise reading.missing("flow detail", flow_uuid)
            if row.outline is None:
                return None
            try:
                return Outline.from_bytes(bytes(row.outline))
            except exceptions.InvalidFormat as error:
                path = f"{tables.OUTLINES.name}/{flow_uuid}"
                raise exceptions.CorruptRecord(
                    f"{path} is damaged: {error}", path=path, flow=flow_uuid
                ) from error

        return self._read("flow detail", flow_uuid, work)

    def get_logs(
        self, flow_uuid: str, atom_uuid: str | None = None, limit: int | None = None
    ) -> list[models.LogChunk]:
        return self._read(
            "flow detail", flow_uuid, lambda it: reading.logs(it, flow_uuid, atom_uuid, limit)
        )

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        return self._read("atom detail", ad_uuid, lambda it: reading.atom(it, ad_uuid))

    def flow_of_atom(self, ad_uuid: str) -> str:
        return self._read("atom detail", ad_uuid, lambda it: reading.flow_of_atom(it, ad_uuid))

    def get_atoms_for_flow(self, fd_uuid: str) -> Iterator[models.AtomDetail]:
        return self._read("flow detail", fd_uuid, lambda it: reading.atoms(it, fd_uuid))

    # -- writing --------------------------------------------------------------------------------

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        logs: Sequence[models.LogChunk] = (),
        lease: leases.Lease | None = None,
    ) -> None:
        turn = writing.turn_of(flow if flow_row else flow.uuid, atoms, items, logs=logs)

        if lease is not None and self._backend.has_fast_turns:
            crashpoint("sql.before-save")
            if self._write_fast(turn, lease):
                crashpoint("sql.after-commit")
                return  # else the long way tells why, or makes a new connection

        def work(connection: sa.Connection) -> None:
            writing.lock(connection, self._sql, flow.uuid, turn.flow, lease)
            turn.write(connection, self._sql, lease)
            crashpoint("sql.before-commit")

        crashpoint("sql.before-save")
        self._transact(f"Saving flow {flow.uuid}", work)
        crashpoint("sql.after-commit")

    def _write_fast(self, turn: writing.Turn, lease: leases.Lease) -> bool:
        self._backend.prepare()
        engine, what = self._backend.turn_engine, f"Saving flow {lease.flow}"
        if engine is not None:
            found = writing.as_statement(self._sql, turn, lease)
            crashpoint("sql.before-commit")
            return found is not None and _sql.at_once(engine, what, *found)
        is_statement = writing.is_statement(self._sql, turn)

        def work(driver: sqlite3.Connection) -> bool:
            written = writing.write_on_driver(driver, self._sql, turn, lease)
            if not is_statement:
                crashpoint("sql.before-commit")
            return written

        if is_statement:  # which commits, too
            crashpoint("sql.before-commit")
        return _sql.turn(self._backend.engine, what, work, is_statement=is_statement)

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        new = writing.NewBook(book)

        def work(connection: sa.Connection) -> models.LogBook:
            new.put(connection, self._sql)
            crashpoint("sql.before-logbook-commit")
            return reading.book(connection, book.uuid, lazy=False)

        crashpoint("sql.before-logbook")
        written = self._transact(f"Saving log book {book.uuid}", work)
        crashpoint("sql.after-logbook-commit")
        return written

    def destroy_logbook(self, book_uuid: str) -> None:
        self._destroy("log book", self._sql.destroy_book, book_uuid)

    def destroy_flow(self, flow_uuid: str) -> None:
        self._destroy("flow detail", self._sql.destroy_flow, flow_uuid)

    def _destroy(self, what: str, statement: sa.TextClause, uuid: str) -> None:
        def work(connection: sa.Connection) -> None:
            if not connection.execute(statement, {"uuid": uuid}).rowcount:
                raise reading.missing(what, uuid)
            crashpoint("sql.before-removal-commit")

        self._transact(f"Removing {what} {uuid}", work)
        crashpoint("sql.after-removal-commit")

    def clear_all(self) -> None:
        self._transact("Removing all log books", lambda it: it.execute(self._sql.clear))

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: leases.Lease | None = None
    ) -> None:
        told = {"flow_uuid": flow_uuid, "outline": outline.to_bytes()}

        def work(connection: sa.Connection) -> None:
            if lease is not None:
                writing.lock(connection, self._sql, flow_uuid, None, lease)
            else:
                reading.lease(connection, self._sql, flow_uuid)  # it is there
            connection.execute(self._sql.put_outline, told)
            crashpoint("sql.before-outline-commit")

        # Of a run, the turn after it says that it is there, and is durable.
        self._transact(f"Saving the outline of flow {flow_uuid}", work, durable=lease is None)
        crashpoint("sql.after-outline-commit")

    # -- leases ---------------------------------------------------------------------------------

    def take_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> leases.Lease:
        told = {"flow_uuid": flow_uuid, "owner": owner, "seconds": seconds, "dead": dead}

        def work(connection: sa.Connection) -> leases.Lease:
            if not connection.execute(self._sql.take_lease, told).rowcount:
                raise writing.refused(connection, self._sql, flow_uuid, None)
            epoch = reading.lease(connection, self._sql, flow_uuid).lease_epoch
            crashpoint("sql.before-lease-commit")
            return leases.Lease(flow_uuid, owner, epoch)

        crashpoint("sql.before-lease")
        # Its owner does not outlive its host, and tells nobody of it before a turn is written.
        taken = self._transact(f"Taking the lease of flow {flow_uuid}", work, durable=False)
        crashpoint("sql.after-lease-commit")
        return taken

    def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
        told = {**writing.lease_conditions(lease), "seconds": seconds}

        def work(connection: sa.Connection) -> None:
            if not connection.execute(self._sql.renew_lease, told).rowcount:
                raise writing.refused(connection, self._sql, lease.flow, lease)

        # An owner does not outlive its host.
        self._transact(f"Renewing the lease of flow {lease.flow}", work, durable=False)
        crashpoint("sql.after-renewal")

    def give_back_lease(self, lease: leases.Lease) -> None:
        told = writing.lease_conditions(lease)
        crashpoint("sql.before-give-back")
        self._transact(
            f"Giving back the lease of flow {lease.flow}",
            lambda connection: connection.execute(self._sql.give_back_lease, told),
            durable=False,
        )
        crashpoint("sql.after-give-back")

    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        row = self._read(
            "flow detail", flow_uuid, lambda it: reading.lease(it, self._sql, flow_uuid)
        )
        if row.lease_owner is None or row.remaining <= 0:
            return None
        return leases.Lease(flow_uuid, row.lease_owner, row.lease_epoch)

    # -- commands -------------------------------------------------------------------------------

    def put_command(self, lease: leases.Lease, command: base.FlowCommand) -> bool:
        told = {**writing.lease_conditions(lease), "wish": _text_of(command)}

        def work(connection: sa.Connection) -> bool:
            heard = bool(connection.execute(self._sql.put_command, told).rowcount)
            crashpoint("sql.before-wish-commit")
            return heard

        heard = self._transact(f"Saving a command about flow {lease.flow}", work)
        crashpoint("sql.after-wish-commit")
        return heard

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        found = {}
        read = self._read_many("Looking for commands", self._sql.commands, flow_uuids)
        for uuid, text, epoch in read:
            # One that is damaged keeps nobody from the commands for other flows.
            with contextlib.suppress(
                ValueError, TypeError, RecursionError, exceptions.InvalidFormat
            ):
                found[uuid] = base.FlowCommand.from_dict({**json.loads(text), "epoch": epoch})
        return found

    def clear_command(self, lease: leases.Lease, command: base.FlowCommand) -> None:
        told = {**writing.lease_conditions(lease), "wish": _text_of(command)}

        def work(connection: sa.Connection) -> None:
            connection.execute(self._sql.clear_command, told)
            crashpoint("sql.before-wish-cleared-commit")

        self._transact(f"Forgetting a command about flow {lease.flow}", work)
        crashpoint("sql.after-wish-cleared-commit")

    def drop_job(self, flow_uuid: str) -> None:
        told = {"flow_uuid": flow_uuid}
        self._transact(
            f"Removing the job of flow {flow_uuid}",
            lambda connection: connection.execute(self._sql.drop_job, told),
        )

    def hasten_job(self, flow_uuid: str) -> None:
        self._transact(
            f"Hastening the job of flow {flow_uuid}",
            lambda connection: writing.hasten_job(connection, self._sql, flow_uuid),
        )

    # -- signals --------------------------------------------------------------------------------

    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        told = {
            "flow_uuid": flow_uuid, "name": signal.name, "value": signal.text, "at": signal.at,
        }  # fmt: skip

        def work(connection: sa.Connection) -> bool:
            reading.lease(connection, self._sql, flow_uuid)  # it is there
            connection.execute(self._sql.add_signal, told)
            row = connection.execute(self._sql.signal, told).one()
            # One that was never claimed waits for its `eta`, not for signals.
            writing.hasten_job(connection, self._sql, flow_uuid, claims=1)
            crashpoint("sql.before-signal-commit")
            return (row.value, row.at) == (signal.text, signal.at)

        is_first = self._transact(f"Saving a signal to flow {flow_uuid}", work)
        crashpoint("sql.after-signal-commit")
        return is_first

    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        found = dict[str, list[Signal]]()
        read = self._read_many("Looking for signals", self._sql.signals, flow_uuids)
        for uuid, name, text, at in read:
            found.setdefault(uuid, []).append(Signal(name, text, at))
        return found

    # -------------------------------------------------------------------------------------------

    def _read(self, what: str, uuid: str, work: Callable[[sa.Connection], _T]) -> _T:
        if not self._backend.is_there():
            raise reading.missing(what, uuid)
        return self._transact(f"Reading {what} {uuid}", work, write=False)

    def _read_many(
        self, what: str, statement: sa.TextClause, flow_uuids: Collection[str]
    ) -> list[Any]:
        """What a statement tells of flows, some of them at a time."""
        asked = list(dict.fromkeys(flow_uuids))
        if not (asked and self._backend.is_there()):
            return []

        def work(connection: sa.Connection) -> list[Any]:
            return [
                row
                for start in range(0, len(asked), _MOST_UUIDS)
                for row in connection.execute(
                    statement, {"uuids": asked[start : start + _MOST_UUIDS]}
                )
            ]

        return self._transact(what, work, write=False)

    def _transact(
        self,
        what: str,
        work: Callable[[sa.Connection], _T],
        *,
        write: bool = True,
        durable: bool = True,
    ) -> _T:
        if write:
            self._backend.prepare()
        return _sql.transact(self._backend.engine, what, work, write=write, durable=durable)


def _text_of(command: base.FlowCommand) -> str:
    return rows.text_of(command._replace(epoch=0).to_dict())
