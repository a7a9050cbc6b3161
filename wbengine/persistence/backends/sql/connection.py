"""One user's view of a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from wbengine import _sql
from wbengine._crash import crashpoint
from wbengine.persistence import base, leases, models
from wbengine.persistence import listing as queries
from wbengine.persistence.backends.sql import (
    commands,
    layout,
    leasing,
    listing,
    outlining,
    reading,
    shelving,
    writing,
)
from wbengine.types.outline import Outline

if TYPE_CHECKING:
    from wbengine.persistence.backends.sql.backend import SQLBackend

__all__ = ["SQLConnection"]

_T = TypeVar("_T")


class SQLConnection(base.Connection):
    """Each call is one transaction on a connection of the backend's pool; none is held between.

    So it may be used by any thread.  A write whose commit was under way when the database went
    away fails, and may have taken place: it may be written again.
    """

    def __init__(self, backend: SQLBackend) -> None:
        self._backend = backend
        self._statements = backend.statements

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

    def find_flows(self, query: queries.Query) -> base.Page:
        if not self._backend.is_there():
            return base.Page([], None)
        return self._transact("Listing flows", lambda it: listing.page(it, query), write=False)

    def get_outline(self, flow_uuid: str) -> Outline | None:
        return self._read("flow detail", flow_uuid, lambda it: outlining.read(it, flow_uuid))

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        return self._read("atom detail", ad_uuid, lambda it: reading.atom(it, ad_uuid))

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
        lease: leases.Lease | None = None,
    ) -> None:
        changes = writing.changes(flow.uuid, atoms, items)
        changes.flow = writing.flow_row(flow) if flow_row else None

        if lease is not None and self._backend.writes_turns:
            crashpoint("sql.before-save")
            if self._turn(changes, lease):
                crashpoint("sql.after-commit")
                return  # else it is refused: the long way tells why

        def work(connection: sa.Connection) -> None:
            shelving.lock(connection, self._statements, flow.uuid, changes.flow, lease)
            writing.write(connection, self._statements, changes, lease)
            crashpoint("sql.before-commit")

        crashpoint("sql.before-save")
        self._transact(f"Saving flow {flow.uuid}", work)
        crashpoint("sql.after-commit")

    def update_atom_details(self, atom_detail: models.AtomDetail) -> models.AtomDetail:
        def work(connection: sa.Connection) -> models.AtomDetail:
            shelving.put_atom(connection, self._statements, atom_detail)
            crashpoint("sql.before-atom-commit")
            return reading.atom(connection, atom_detail.uuid)

        written = self._transact(f"Saving atom {atom_detail.uuid}", work)
        crashpoint("sql.after-atom-commit")
        return written

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        shelved = shelving.Shelved(book)

        def work(connection: sa.Connection) -> models.LogBook:
            shelved.put(connection, self._statements)
            crashpoint("sql.before-logbook-commit")
            return reading.book(connection, book.uuid, lazy=False)

        crashpoint("sql.before-logbook")
        written = self._transact(f"Saving log book {book.uuid}", work)
        crashpoint("sql.after-logbook-commit")
        return written

    def destroy_logbook(self, book_uuid: str) -> None:
        def work(connection: sa.Connection) -> None:
            shelving.destroy(connection, book_uuid)
            crashpoint("sql.before-removal-commit")

        self._transact(f"Removing log book {book_uuid}", work)
        crashpoint("sql.after-removal-commit")

    def destroy_flow(self, flow_uuid: str) -> None:
        def work(connection: sa.Connection) -> None:
            shelving.destroy_flow(connection, flow_uuid)
            crashpoint("sql.before-flow-removal-commit")

        self._transact(f"Removing flow {flow_uuid}", work)
        crashpoint("sql.after-flow-removal-commit")

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: leases.Lease | None = None
    ) -> None:
        data = outline.to_bytes()

        def work(connection: sa.Connection) -> None:
            outlining.put(connection, self._statements, flow_uuid, data, lease)
            crashpoint("sql.before-outline-commit")

        self._transact(f"Saving the outline of flow {flow_uuid}", work)
        crashpoint("sql.after-outline-commit")

    def clear_all(self) -> None:
        self._transact("Removing all log books", shelving.clear)

    # -- leases ---------------------------------------------------------------------------------

    def take_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> leases.Lease:
        def work(connection: sa.Connection) -> leases.Lease:
            taken = leasing.take(connection, self._statements, flow_uuid, owner, seconds, dead)
            crashpoint("sql.before-lease-commit")
            return taken

        crashpoint("sql.before-lease")
        taken = self._transact(f"Taking the lease of flow {flow_uuid}", work)
        crashpoint("sql.after-lease-commit")
        return taken

    def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
        self._transact(
            f"Renewing the lease of flow {lease.flow}",
            lambda connection: leasing.renew(connection, self._statements, lease, seconds),
        )
        crashpoint("sql.after-renewal")

    def give_back_lease(self, lease: leases.Lease) -> None:
        crashpoint("sql.before-give-back")
        self._transact(
            f"Giving back the lease of flow {lease.flow}",
            lambda connection: leasing.give_back(connection, self._statements, lease),
        )
        crashpoint("sql.after-give-back")

    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        return self._read(
            "flow detail",
            flow_uuid,
            lambda connection: leasing.holder(connection, self._statements, flow_uuid),
        )

    # -- commands -------------------------------------------------------------------------------

    def put_command(self, lease: leases.Lease, command: base.FlowCommand) -> bool:
        def work(connection: sa.Connection) -> bool:
            heard = commands.put(connection, self._statements, lease, command)
            crashpoint("sql.before-wish-commit")
            return heard

        heard = self._transact(f"Saving a command about flow {lease.flow}", work)
        crashpoint("sql.after-wish-commit")
        return heard

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        if not (flow_uuids and self._backend.is_there()):
            return {}
        return self._transact(
            "Looking for commands",
            lambda it: commands.read_all(it, self._statements, flow_uuids),
            write=False,
        )

    def clear_command(self, lease: leases.Lease, command: base.FlowCommand) -> None:
        def work(connection: sa.Connection) -> None:
            commands.clear(connection, self._statements, lease, command)
            crashpoint("sql.before-wish-cleared-commit")

        self._transact(f"Forgetting a command about flow {lease.flow}", work)
        crashpoint("sql.after-wish-cleared-commit")

    # -------------------------------------------------------------------------------------------

    def _turn(self, changes: writing.Changes, lease: leases.Lease) -> bool:
        """Write a turn on the driver's own connection; False: not under this lease."""

        def work(driver: sqlite3.Connection) -> bool:
            written = writing.write_turn(driver, self._statements, changes, lease)
            crashpoint("sql.before-commit")
            return written

        self._backend.prepare()
        return _sql.turn(self._backend.engine, f"Saving flow {lease.flow}", work)

    def _read(self, what: str, uuid: str, work: Callable[[sa.Connection], _T]) -> _T:
        if not self._backend.is_there():
            raise reading.missing(what, uuid)
        return self._transact(f"Reading {what} {uuid}", work, write=False)

    def _transact(
        self, what: str, work: Callable[[sa.Connection], _T], *, write: bool = True
    ) -> _T:
        if write:
            self._backend.prepare()
        return _sql.transact(self._backend.engine, what, work, write=write)
