"""A persistence backend for SQL databases."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._concurrency import clocks
from wbengine._concurrency.crash_points import crashpoint
from wbengine._introspection import object_names
from wbengine._security import sealing
from wbengine._sql import dialects
from wbengine.persistence import (
    _access_keys,
    _child_ends,
    _leases,
    _sealed_fields,
    base,
    models,
)
from wbengine.persistence import _commands as commands
from wbengine.persistence import _listing as queries
from wbengine.persistence._access_keys import AccessKey
from wbengine.persistence._codes import Code
from wbengine.persistence._pauses import QueuePause, TaskPause
from wbengine.persistence.backends._sql import (
    flow_queries,
    reading,
    rows,
    schema_revisions,
    tables,
    writing,
)
from wbengine.persistence.backends._sql.statements import Statements
from wbengine.signals import Signal, oldest_first
from wbengine.types._outline import Outline

if TYPE_CHECKING:
    from wbengine.persistence._bulk_records import BulkStore

__all__ = ["SQLBackend", "SQLConnection"]

LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Loaded when it is used, because this is rare.
_BULK_STORE: Final = f"{__package__}.bulk_store:SQLBulkStore"

#: Databases limit the length of statements.
_MAX_UUIDS_PER_STATEMENT: Final = 500

#: Submissions with one of these keys wait until the transaction ends.
_KEYS_PER_TRANSACTION: Final = 500


class SQLBackend(base.Backend):
    """A store in tables of an SQL database. Table names start with `wbe_`.

    `connection` is the URL: 'sqlite:////path/of.db' ('sqlite://' is in memory, for tests),
    'mysql://user:password@host/database' (MariaDB and MySQL, with PyMySQL), or 'postgresql://...'
    (with psycopg). A URL with a driver ('mysql+mysqldb://') is used unchanged. The other options
    are those of `_sql.DatabaseOptions`. Unknown parts of the URL's query are passed to the driver.

    The first write to an empty database creates the tables. `Connection.upgrade` converts tables of
    an older layout; until then, access to them fails. Tables of a newer layout are used if it only
    added to this one.

    :raises ValueError: if the URL or an option is invalid.
    :raises ImportError: if a driver is not installed; the message says how to install it.
    """

    head: Final = schema_revisions.HEAD
    stores_limits = True

    def __init__(self, conf: Mapping[str, Any] | None = None) -> None:
        super().__init__(conf)
        self.options = self._parsed()
        self.engine: sa.Engine = _sql.make_engine(self.options)
        self.statements = Statements(self.options.dialect)
        #: Engine for frequent transactions of a single statement; None: use `engine`.
        self.statement_engine: Final = _sql.statement_engine(self.options)
        #: Whether batches bypass SQLAlchemy's transactions; False if statements are logged.
        self.has_fast_batches: Final = not self.options.log_statements and (
            _sql.writer_of(self.engine) is not None or self.statement_engine is not None
        )
        #: Whether the database does not use the clock of this host.
        self.has_clock: Final = self.options.dialect != dialects.SQLITE
        self._ready = False
        self._preparing = threading.Lock()

    def _parsed(self) -> _sql.DatabaseOptions:
        options = dict(self._conf)
        url = str(options.pop("connection", ""))
        return _sql.parse(url, options)

    def get_connection(self) -> SQLConnection:
        """Return a connection, at no cost: each of its calls uses a connection of the pool."""
        return SQLConnection(self)

    def in_transaction(self, transaction: sa.Connection) -> base.Backend:
        """Return this store for the time of a transaction, to which all of its calls belong."""
        return _BackendInTransaction(self, transaction)

    def check_tables(self) -> None:
        """Check that the database contains the tables, in a layout that this release can use.

        :raises StorageFailure: if it does not.
        """
        if not self.has_tables():
            raise exceptions.StorageFailure(
                f"{self!r} contains no tables: {schema_revisions.UPGRADE_HINT}"
            )

    def check_identity(self) -> None:
        _sql.check_file(self.engine)

    def close(self) -> None:
        self._ready = False
        _sql.dispose(self.engine)
        if self.statement_engine is not None:
            _sql.dispose(self.statement_engine)

    def upgrade(self) -> None:
        """Convert the tables to the current layout, unless they have a usable newer one.

        A current layout needs no write. So this also works while a transaction of the caller locks
        an SQLite file.
        """
        stored = self.stored_layout()
        if stored is None or not stored.is_usable:
            self._note_layout(schema_revisions.upgrade(self.engine))

    def stored_layout(self) -> schema_revisions.Layout | None:
        """Return the layout of the tables, or None if there are no tables."""
        if self._is_missing_file():
            return None
        operation = "Reading the revision of the database"
        stored = _sql.transact(self.engine, operation, schema_revisions.stored_layout, write=False)
        if stored is not None:
            self._note_layout(stored)
        return stored

    def _note_layout(self, stored: schema_revisions.Layout) -> None:
        if self._ready or not stored.is_usable:
            return
        self._ready = True
        if not stored.is_known:
            LOG.info(
                "The layout of %r has revision %s, newer than %s, and can be used",
                self, stored.revision, schema_revisions.HEAD,
            )  # fmt: skip

    def has_tables(self) -> bool:
        """Return True if the database contains the tables.

        :raises StorageFailure: if this release cannot use the layout of the tables.
        """
        if not self._ready:
            stored = self.stored_layout()
            if stored is None:
                return False
            stored.check()
        return True

    def save_new_books(
        self,
        books: Iterable[models.LogBook],
        first: Callable[[sa.Connection], bool] | None = None,
    ) -> bool:
        """Save new logbooks and their flows in one transaction. Other processes must not know them.

        :param first: the first step of the transaction. If it returns False, nothing is saved and
            this method returns False.
        """
        new = [writing.NewBook(book) for book in books]
        if not new:
            return False

        def work(connection: sa.Connection) -> bool:
            if first is not None and not first(connection):
                return False
            writing.write_new_books(connection, self.statements, new)
            return True

        self.prepare()
        return _sql.transact(self.engine, f"Saving {len(new)} logbooks", work)

    def prepare(self) -> None:
        """Create the tables if there are none.

        :raises StorageFailure: if this release cannot use the layout of the tables.
        """
        if not self._ready:
            with self._preparing:
                if not self.has_tables():
                    self.upgrade()

    def problems(self) -> list[str]:
        """Return the integrity problems of an SQLite file. Database servers check their own files.

        Cost: reads the whole file.
        """
        if self.options.dialect != dialects.SQLITE or not self.has_tables():
            return []

        def work(connection: sa.Connection) -> list[str]:
            # The second check compares indexes with tables and requires a well-formed file.
            for check in ("quick_check", "integrity_check"):
                results = connection.exec_driver_sql(f"PRAGMA {check}").scalars().all()
                if results != ["ok"]:
                    return [text.replace("\n", "; ") for text in results]
            return []

        return _sql.transact(self.engine, "Checking the database", work, write=False)

    def _is_missing_file(self) -> bool:
        path = self.options.url.database
        if self.options.dialect != dialects.SQLITE or self.options.in_memory or path is None:
            return False
        return not path.startswith("file:") and not os.path.exists(path)

    def __repr__(self) -> str:
        return f"<SQLBackend {self.options.url.render_as_string()}>"


class SQLConnection(base.Connection):
    """A connection in which each call is one transaction on a connection of the backend's pool.

    Thread-safe, because no pool connection is in use between calls. If the database fails during a
    commit, the write raises an error although it may be stored; it can be repeated safely.

    :param transaction: a transaction of the caller, to which each call belongs instead.
    """

    def __init__(self, backend: SQLBackend, transaction: sa.Connection | None = None) -> None:
        self._backend = backend
        self._transaction = transaction
        self._sql = backend.statements

    @property
    def backend(self) -> SQLBackend:
        return self._backend

    @property
    def excludes_writers(self) -> bool:
        return self._transaction is not None and self._backend.options.dialect == dialects.SQLITE

    def upgrade(self) -> None:
        self._backend.upgrade()

    def validate(self) -> None:
        """Raise `StorageFailure` if this release cannot use the layout of the tables.

        A database without tables is valid: the first write creates them.
        """
        stored = self._backend.stored_layout()
        if stored is not None:
            stored.check()

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        return self._read("logbook", book_uuid, lambda it: reading.book(it, book_uuid, lazy))

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        if not self._backend.has_tables():
            return iter(())
        return self._transact("Reading log books", lambda it: reading.books(it, lazy), write=False)

    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        return self._read("logbook", book_uuid, lambda it: reading.flows(it, book_uuid, lazy))

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        return self._read("flow detail", fd_uuid, lambda it: reading.flow(it, fd_uuid, lazy))

    def flow_records(self, flow_uuids: Collection[str]) -> Mapping[str, models.FlowDetail]:
        return reading.flow_records(
            self._read_many("Reading flow details", self._sql.flows, flow_uuids)
        )

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        return self._read(
            "flow detail", flow_uuid, lambda it: reading.changes(it, flow_uuid, since)
        )

    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        read = self._read_many("Reading what changed", self._sql.marks, flow_uuids)
        return {uuid: " ".join(map(str, values)) for uuid, *values in read}

    def find_flows(self, query: queries.Query) -> base.Page:
        if not self._backend.has_tables():
            return base.Page([], None)
        return self._transact("Listing flows", lambda it: flow_queries.page(it, query), write=False)

    def count_children(self, flow_uuid: str) -> Mapping[str, int]:
        if not self._backend.has_tables():
            return {}
        return self._transact(
            "Counting child flows",
            lambda it: flow_queries.count_children(it, flow_uuid),
            write=False,
        )

    def position(self, flow_uuid: str) -> queries.Position:
        def work(connection: sa.Connection) -> queries.Position:
            row = connection.execute(self._sql.position, {"flow_uuid": flow_uuid}).first()
            if row is None:
                raise reading.missing("flow detail", flow_uuid)
            return queries.Position(row.created, row.id)

        return self._read("flow detail", flow_uuid, work)

    def backlog(self) -> queries.Backlog:
        if not self._backend.has_tables():
            return queries.Backlog()
        return self._transact("Counting flows", flow_queries.backlog, write=False)

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

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        logs: Sequence[models.LogChunk] = (),
        lease: _leases.Lease | None = None,
        settled: commands.FlowCommand | None = None,
        dropped: Collection[str] = (),
    ) -> None:
        flow_or_uuid = flow if flow_row else flow.uuid
        batch = writing.batch_of(flow_or_uuid, atoms, items, logs=logs, dropped=dropped)

        child_end = _child_ends.end_of(flow) if flow_row else None
        forks = flow.forks_to_start if flow_row else ()
        is_alone = self._transaction is None and child_end is None and not forks
        is_fast = self._backend.has_fast_batches and is_alone
        if lease is not None and settled is None and is_fast:
            crashpoint("sql.before-save")
            if self._write_batch_fast(batch, lease):
                crashpoint("sql.after-commit")
                return  # Otherwise the transaction below finds the reason or reconnects.

        def work(connection: sa.Connection) -> None:
            writing.lock(connection, self._sql, flow.uuid, batch.flow, lease)
            batch.write(connection, self._sql, lease)
            if settled is not None:
                writing.settle_command(connection, self._sql, flow.uuid, settled)
            writing.report_end(connection, self._sql, child_end)
            for fork in forks:
                try:
                    writing.release_fork(connection, self._sql, fork)
                except exceptions.FlowBusy as busy:  # For example its tags: the write is repeated.
                    reason = f"Saving flow {flow.uuid} failed: its fork is being changed"
                    raise exceptions.StorageFailure(reason, busy) from busy
            crashpoint("sql.before-commit")

        crashpoint("sql.before-save")
        self._transact(f"Saving flow {flow.uuid}", work, idempotent=settled is None)
        crashpoint("sql.after-commit")

    def _write_batch_fast(self, batch: writing.Batch, lease: _leases.Lease) -> bool:
        self._backend.prepare()
        engine, operation = self._backend.statement_engine, f"Saving flow {lease.flow}"
        if engine is not None:
            statement = writing.as_statement(self._sql, batch, lease)
            crashpoint("sql.before-commit")
            if statement is None:
                return False
            counts = _sql.transact_statement(engine, operation, *statement)
            return counts is not None and counts[0][0] == 1
        is_statement = writing.is_statement(self._sql, batch)

        def work(driver: sqlite3.Connection) -> bool:
            written = writing.write_on_driver(driver, self._sql, batch, lease)
            if not is_statement:
                crashpoint("sql.before-commit")
            return written

        if is_statement:  # The statement also commits.
            crashpoint("sql.before-commit")
        return _sql.transact_batched(
            self._backend.engine, operation, work, is_statement=is_statement
        )

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        new = writing.NewBook(book)

        def work(connection: sa.Connection) -> models.LogBook:
            new.put(connection, self._sql)
            crashpoint("sql.before-logbook-commit")
            return reading.book(connection, book.uuid, lazy=False)

        crashpoint("sql.before-logbook")
        written = self._transact(f"Saving logbook {book.uuid}", work, idempotent=True)
        crashpoint("sql.after-logbook-commit")
        return written

    def save_fork(
        self,
        fork: base.NewFork,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        lease: _leases.Lease,
    ) -> None:
        new, batch = writing.NewBook(fork.book), writing.batch_of(flow, atoms)
        outline = None if fork.outline is None else fork.outline.to_bytes()

        def work(connection: sa.Connection) -> None:
            writing.lock(connection, self._sql, flow.uuid, batch.flow, lease)
            batch.write(connection, self._sql, lease)
            new.put(connection, self._sql)
            if outline is not None:
                row = {"flow_uuid": fork.flow.uuid, "outline": outline}
                connection.execute(self._sql.put_outline, row)
            for signal in fork.signals:
                writing.add_signal(connection, self._sql, fork.flow.uuid, signal)
            writing.ensure_job(connection, self._sql, fork.flow)
            if fork.moves_keys:
                moved = {"flow_uuid": fork.flow.uuid, "old_uuid": flow.uuid}
                connection.execute(self._sql.move_keys, moved)
            if fork.revert is not None:
                SQLConnection(self._backend, connection).put_command(flow.uuid, fork.revert)
            crashpoint("sql.before-fork-commit")

        crashpoint("sql.before-fork")
        self._transact(f"Forking flow {flow.uuid}", work)
        crashpoint("sql.after-fork-commit")

    def destroy_logbook(self, book_uuid: str, *, unused_only: bool = False) -> None:
        self._remove(
            f"logbook {book_uuid}",
            lambda it: writing.destroy_book(it, self._sql, book_uuid, unused_only),
        )

    def destroy_flow(self, flow_uuid: str, only: base.Removable | None = None) -> None:
        self._remove(
            f"flow detail {flow_uuid}",
            lambda it: writing.destroy_flow(it, self._sql, flow_uuid, only),
        )

    def _remove(self, what: str, work: Callable[[sa.Connection], None]) -> None:
        def remove(connection: sa.Connection) -> None:
            work(connection)
            crashpoint("sql.before-removal-commit")

        self._transact(f"Removing {what}", remove)
        crashpoint("sql.after-removal-commit")

    def ended_flows(
        self, before: Mapping[str, float], limit: int, since: float = 0.0
    ) -> list[base.EndedFlow]:
        if not (before and self._backend.has_tables()):
            return []
        parts = (self._sql.expired[state] for state in before)
        union = " UNION ALL ".join(
            f"SELECT * FROM ({part}) AS {state}" for state, part in zip(before, parts, strict=True)
        )
        statement = sa.text(f"{union} ORDER BY ended LIMIT :most")

        def work(connection: sa.Connection) -> list[base.EndedFlow]:
            found = connection.execute(statement, {**before, "since": since, "most": limit})
            return [base.EndedFlow(row.uuid, row.state, row.book_uuid, row.ended) for row in found]

        return self._transact("Listing ended flows", work, write=False)

    def destroy_flows(self, flows: Mapping[base.EndedFlow, base.Removable]) -> list[str]:
        def work(connection: sa.Connection) -> list[str]:
            deleted = writing.destroy_flows(connection, self._sql, flows)
            crashpoint("sql.before-removal-commit")
            return deleted

        deleted = self._transact(f"Removing {len(flows)} flows", work)
        crashpoint("sql.after-removal-commit")
        return deleted

    def count_flows(self) -> int:
        if not self._backend.has_tables():
            return 0
        return self._transact(
            "Counting flows", lambda it: int(it.scalar(self._sql.count_flows) or 0), write=False
        )

    def oldest_flow(self) -> float | None:
        if not self._backend.has_tables():
            return None
        oldest: float | None = self._transact(
            "Reading the oldest flow", lambda it: it.scalar(self._sql.oldest_flow), write=False
        )
        return oldest

    def claim_duty(self, name: str, owner: str, seconds: float) -> bool:
        parameters = {"name": name, "owner": owner, "seconds": seconds}

        def work(connection: sa.Connection) -> bool:
            connection.execute(self._sql.add_duty, [{"name": name}])
            return connection.execute(self._sql.claim_duty, parameters).rowcount > 0

        claimed = self._transact(f"Claiming {name}", work, durable=False, idempotent=True)
        crashpoint("sql.after-duty-claim")
        return claimed

    def end_duty(self, name: str, owner: str, seconds: float, note: Mapping[str, Any]) -> None:
        parameters = {"name": name, "owner": owner, "seconds": seconds, "note": rows.text_of(note)}
        self._transact(
            f"Ending {name}",
            lambda connection: connection.execute(self._sql.end_duty, parameters),
            idempotent=True,
        )
        crashpoint("sql.after-duty-end")

    def duty_note(self, name: str) -> Mapping[str, Any]:
        if not self._backend.has_tables():
            return {}
        text = self._transact(
            f"Reading {name}",
            lambda it: it.scalar(self._sql.duty_note, {"name": name}),
            write=False,
        )
        return rows.object_of(text)

    def clear_all(self) -> None:
        def work(connection: sa.Connection) -> None:
            connection.execute(self._sql.clear_jobs)
            connection.execute(self._sql.clear)

        self._transact("Removing all logbooks", work)

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: _leases.Lease | None = None
    ) -> None:
        parameters = {"flow_uuid": flow_uuid, "outline": outline.to_bytes()}

        def work(connection: sa.Connection) -> None:
            if lease is not None:
                writing.lock(connection, self._sql, flow_uuid, None, lease)
            else:
                # Raises an error if the flow does not exist.
                reading.lease(connection, self._sql, flow_uuid)
            connection.execute(self._sql.put_outline, parameters)
            crashpoint("sql.before-outline-commit")

        # In a run, this commit needs no sync: the next batch stores the outline's digest and syncs.
        what = f"Saving the outline of flow {flow_uuid}"
        self._transact(what, work, durable=lease is None, idempotent=True)
        crashpoint("sql.after-outline-commit")

    def acquire_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> _leases.Lease:
        parameters = {"flow_uuid": flow_uuid, "owner": owner, "seconds": seconds, "dead": dead}

        def work(connection: sa.Connection) -> _leases.Lease:
            if not connection.execute(self._sql.acquire_lease, parameters).rowcount:
                raise writing.rejection(connection, self._sql, flow_uuid, None)
            row = reading.lease(connection, self._sql, flow_uuid)
            ahead = row.now - clocks.uptime() if self._backend.has_clock else None
            command = rows.command_of(row.wish)
            if command is not None and not command.applies_to(row.state):
                connection.execute(self._sql.put_command, {"flow_uuid": flow_uuid, "wish": None})
                command = None
            crashpoint("sql.before-lease-commit")
            return _leases.Lease(flow_uuid, owner, row.lease_epoch, command, ahead)

        crashpoint("sql.before-lease")
        # No sync: a host crash also ends the owner, which publishes only after writing a batch.
        # If the commit succeeded, `FlowBusy` names this owner.
        what = f"Taking the lease of flow {flow_uuid}"
        lease = self._transact(what, work, durable=False, idempotent=True)
        crashpoint("sql.after-lease-commit")
        return lease

    def now(self) -> float:
        if not self._backend.has_clock:
            return super().now()
        return self._transact(
            "Reading the time", lambda it: float(it.scalar(self._sql.now) or 0.0), write=False
        )

    def renew_lease(self, lease: _leases.Lease, seconds: float) -> None:
        parameters = {**writing.lease_conditions(lease), "seconds": seconds}

        def work(connection: sa.Connection) -> None:
            if not connection.execute(self._sql.renew_lease, parameters).rowcount:
                raise writing.rejection(connection, self._sql, lease.flow, lease)

        # No sync: a host crash also ends the owner.
        self._transact(f"Renewing the lease of flow {lease.flow}", work, durable=False)
        crashpoint("sql.after-renewal")

    def release_lease(self, lease: _leases.Lease) -> None:
        parameters = writing.lease_conditions(lease)
        crashpoint("sql.before-give-back")
        self._transact(
            f"Releasing the lease of flow {lease.flow}",
            lambda connection: connection.execute(self._sql.release_lease, parameters),
            durable=False,
            idempotent=True,
        )
        crashpoint("sql.after-give-back")

    def end_lease(
        self, lease: _leases.Lease, handled: base.FlowCommand | None, *, keep: bool = False
    ) -> base.FlowCommand | None:
        parameters = writing.lease_conditions(lease)

        def work(connection: sa.Connection) -> base.FlowCommand | None:
            if connection.execute(self._sql.end_lease, parameters).rowcount:
                return None
            row = connection.execute(self._sql.command_ours, parameters).first()
            if row is None:
                return None  # lost
            command = rows.command_of(row.wish)
            if command not in (None, handled):
                return command
            release = self._sql.release_lease if keep else self._sql.end_lease_and_command
            connection.execute(release, parameters)
            return None

        crashpoint("sql.before-give-back")
        what = f"Releasing the lease of flow {lease.flow}"
        unread = self._transact(what, work, durable=False, idempotent=True)
        crashpoint("sql.after-give-back")
        return unread

    def get_lease(self, flow_uuid: str) -> _leases.Lease | None:
        row = self._read(
            "flow detail", flow_uuid, lambda it: reading.lease(it, self._sql, flow_uuid)
        )
        if row.lease_owner is None or row.remaining <= 0:
            return None
        return _leases.Lease(flow_uuid, row.lease_owner, row.lease_epoch)

    def put_command(self, flow_uuid: str, command: base.FlowCommand) -> base.FlowCommand | None:
        def work(connection: sa.Connection) -> base.FlowCommand | None:
            found = reading.locked_flow(connection, self._sql, flow_uuid)
            if found is None:
                raise reading.missing("flow detail", flow_uuid)
            flow, row = found
            result = commands.accepted(
                command,
                flow_uuid,
                flow.state,
                is_cancelled=flow.is_cancelled,
                stored=rows.command_of(row["wish"]),
                used_by_fork=SQLConnection(self._backend, connection)._fork_refusal(
                    flow, command.what
                ),
            )
            text = rows.command_text(result)
            connection.execute(self._sql.put_command, {"flow_uuid": flow_uuid, "wish": text})
            if result is not None:
                writing.make_job_due(connection, self._sql, flow_uuid, is_first=True)
                if result.what == commands.CANCEL and flow.awaits_reversion:
                    writing.release_fork(connection, self._sql, flow_uuid)
                elif result.what != commands.SUSPEND:
                    writing.ensure_job(connection, self._sql, flow)
            crashpoint("sql.before-wish-commit")
            return result

        result = self._transact(f"Saving a command about flow {flow_uuid}", work)
        crashpoint("sql.after-wish-commit")
        return result

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        rows_read = self._read_many("Looking for commands", self._sql.commands, flow_uuids)
        read = ((uuid, rows.pending_command(text, state)) for uuid, text, state in rows_read)
        return {uuid: command for uuid, command in read if command is not None}

    def drop_job(self, flow_uuid: str) -> None:
        parameters = {"flow_uuid": flow_uuid}
        self._transact(
            f"Removing the job of flow {flow_uuid}",
            lambda connection: connection.execute(self._sql.drop_job, parameters),
        )

    @property
    def bulks(self) -> BulkStore:
        backend = self._backend
        store: BulkStore = object_names.load(_BULK_STORE)(
            backend.options.dialect, self._transact, backend.has_tables, backend.in_transaction
        )
        return store

    def delete_expired_keys(self) -> None:
        if not self._backend.has_tables():
            return

        def read(connection: sa.Connection) -> list[rows.Row]:
            return [dict(row) for row in connection.execute(self._sql.expired_keys).mappings()]

        keys = self._transact("Listing expired keys", read, write=False)
        for first in range(0, len(keys), _KEYS_PER_TRANSACTION):
            batch = keys[first : first + _KEYS_PER_TRANSACTION]

            def delete(connection: sa.Connection, batch: list[rows.Row] = batch) -> None:
                connection.execute(self._sql.delete_expired_key, batch)

            self._transact("Removing expired keys", delete)

    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        def work(connection: sa.Connection) -> bool:
            # Raises an error if the flow does not exist.
            reading.lease(connection, self._sql, flow_uuid)
            added = writing.add_signal(connection, self._sql, flow_uuid, signal)
            row = connection.execute(self._sql.signal, added).one()
            crashpoint("sql.before-signal-commit")
            return (row.value, row.at) == (added["value"], signal.at)

        what = f"Saving a signal to flow {flow_uuid}"
        is_first = self._transact(what, work, idempotent=True)
        crashpoint("sql.after-signal-commit")
        return is_first

    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        signals = dict[str, list[Signal]]()
        rows_read = self._read_many("Looking for signals", self._sql.signals, flow_uuids)
        for uuid, name, stored, at in rows_read:
            try:
                text = sealing.opened(stored, *_sealed_fields.place_of_signal(uuid, name))
            except exceptions.NotTrusted as error:
                raise rows.SIGNAL.damaged({"flow_uuid": uuid, "name": name}, error, uuid) from error
            signals.setdefault(uuid, []).append(Signal.from_stored(name, text, at))
        return {uuid: oldest_first(received) for uuid, received in signals.items()}

    def put_pause(self, pause: TaskPause) -> None:
        pause.check()
        names = ("pattern", "reason", "sender", "paused_at", "ends_at")
        parameters = dict(zip(names, pause, strict=True))

        def work(connection: sa.Connection) -> None:
            connection.execute(self._sql.put_pause, [parameters])
            writing.make_paused_jobs_due(connection, self._sql, pause.pattern)
            crashpoint("sql.before-pause-commit")

        self._transact(f"Saving the pause of {pause.pattern}", work)

    def remove_pause(self, pattern: str, *, ended: bool = False) -> bool:
        statement = self._sql.remove_ended_pause if ended else self._sql.remove_pause

        def work(connection: sa.Connection) -> bool:
            if not connection.execute(statement, {"pattern": pattern}).rowcount:
                return False
            writing.make_paused_jobs_due(connection, self._sql, pattern)
            crashpoint("sql.before-resume-commit")
            return True

        return self._transact(f"Removing the pause of {pattern}", work)

    def pauses(self) -> Sequence[TaskPause]:
        if not self._backend.has_tables():
            return []

        def work(connection: sa.Connection) -> list[TaskPause]:
            return [TaskPause(*row) for row in connection.execute(self._sql.pauses)]

        return self._transact("Reading the pauses", work, write=False)

    def queue_pause(self, flow_uuid: str) -> QueuePause | None:
        if not self._backend.has_tables():
            return None

        def work(connection: sa.Connection) -> QueuePause | None:
            row = connection.execute(self._sql.queue_pause, {"uuid": flow_uuid}).first()
            return None if row is None else QueuePause(*row)

        return self._transact("Reading the pause of a queue", work, write=False)

    def add_access_key(self, key: AccessKey) -> None:
        fields = {**key._asdict(), "tags": _access_keys.text_of_limits(key)}
        del fields["queues"]
        parameters = {"key_id": fields.pop("id"), **fields}

        def work(connection: sa.Connection) -> None:
            if connection.execute(self._sql.access_key, {"key_id": key.id}).first():
                raise exceptions.Duplicate(f"Access key {key.id} already exists")
            connection.execute(self._sql.add_access_key, parameters)

        self._transact(f"Saving access key {key.id}", work)

    def end_access_key(self, key_id: str, at: float, *, revoke: bool) -> bool:
        statement = self._sql.revoke_access_key if revoke else self._sql.limit_access_key

        def work(connection: sa.Connection) -> bool:
            return connection.execute(statement, {"key_id": key_id, "at": at}).rowcount > 0

        return self._transact(f"Ending access key {key_id}", work)

    def note_use_of_access_key(self, key_id: str, at: float) -> None:
        parameters = {"key_id": key_id, "at": at}
        self._transact(
            f"Saving the latest use of access key {key_id}",
            lambda connection: connection.execute(self._sql.note_use_of_access_key, parameters),
            durable=False,  # It is repeated.
        )

    def access_keys(self) -> Sequence[AccessKey]:
        if not self._backend.has_tables():
            return []

        def work(connection: sa.Connection) -> list[AccessKey]:
            return [_access_key(row) for row in connection.execute(self._sql.access_keys)]

        return self._transact("Reading the access keys", work, write=False)

    def access_key(self, key_id: str) -> AccessKey | None:
        if not self._backend.has_tables():
            return None

        def work(connection: sa.Connection) -> AccessKey | None:
            row = connection.execute(self._sql.access_key, {"key_id": key_id}).first()
            return None if row is None else _access_key(row)

        return self._transact(f"Reading access key {key_id}", work, write=False)

    def add_codes(self, version: str, apps: Iterable[str], earlier: Iterable[str] = ()) -> None:
        versions = (*earlier, version)
        parameters = [{"app": app, "version": each} for app in apps for each in versions]

        def work(connection: sa.Connection) -> None:
            if parameters:
                connection.execute(self._sql.add_code, parameters)
            connection.execute(self._sql.report_code, {"version": version})

        self._transact(f"Adding code version {version!r}", work)

    def report_code(self, version: str) -> None:
        self._transact(
            f"Reporting code version {version!r}",
            lambda connection: connection.execute(self._sql.report_code, {"version": version}),
            durable=False,  # It is repeated.
        )

    def withdraw_code(self, version: str) -> None:
        self._transact(
            f"Withdrawing code version {version!r}",
            lambda connection: connection.execute(self._sql.withdraw_code, {"version": version}),
        )

    def codes(self) -> Sequence[Code]:
        if not self._backend.has_tables():
            return []

        def work(connection: sa.Connection) -> list[Code]:
            return [Code(*row) for row in connection.execute(self._sql.codes)]

        return self._transact("Reading the code versions", work, write=False)

    def flows_by_code(self) -> Mapping[str, int]:
        if not self._backend.has_tables():
            return {}

        def work(connection: sa.Connection) -> dict[str, int]:
            counts = connection.execute(self._sql.flows_by_code)
            return {str(code): int(count) for code, count in counts}

        return self._transact("Counting flows by code", work, write=False)

    def assign_code(self, old: str, new: str) -> int:
        parameters = {"old": old, "new": new}

        def work(connection: sa.Connection) -> int:
            connection.execute(self._sql.make_jobs_of_code_due, parameters)
            crashpoint("sql.before-assign-commit")
            return connection.execute(self._sql.assign_code, parameters).rowcount

        return self._transact(f"Assigning flows of code {old} to {new}", work)

    def _read(self, what: str, uuid: str, work: Callable[[sa.Connection], _T]) -> _T:
        if not self._backend.has_tables():
            raise reading.missing(what, uuid)
        return self._transact(f"Reading {what} {uuid}", work, write=False)

    def _read_many(
        self, what: str, statement: sa.TextClause, flow_uuids: Collection[str]
    ) -> list[Any]:
        uuids = list(dict.fromkeys(flow_uuids))
        if not (uuids and self._backend.has_tables()):
            return []

        def work(connection: sa.Connection) -> list[Any]:
            return [
                row
                for start in range(0, len(uuids), _MAX_UUIDS_PER_STATEMENT)
                for row in connection.execute(
                    statement, {"uuids": uuids[start : start + _MAX_UUIDS_PER_STATEMENT]}
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
        idempotent: bool = False,
    ) -> _T:
        if self._transaction is not None:
            return work(self._transaction)
        if write:
            self._backend.prepare()
        return _sql.transact(
            self._backend.engine, what, work,
            write=write, durable=durable, idempotent=idempotent,
        )  # fmt: skip


def _access_key(row: sa.Row[Any]) -> AccessKey:
    tags, queues = _access_keys.limits_of(row.tags, row.key_id)
    fields = {**row._mapping, "tags": tags, "queues": queues}
    return AccessKey(fields.pop("key_id"), **fields)


class _BackendInTransaction(base.Backend):
    """A store whose connections belong to one transaction."""

    def __init__(self, backend: SQLBackend, transaction: sa.Connection) -> None:
        super().__init__(backend.conf)
        self.payloads_location = backend.payloads_location
        self._backend = backend
        self._transaction = transaction

    def get_connection(self) -> SQLConnection:
        return SQLConnection(self._backend, self._transaction)

    def close(self) -> None:
        """Do nothing; the transaction belongs to the caller."""
