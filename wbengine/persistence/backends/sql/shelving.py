"""Putting books on the shelf, and taking them away; each is part of a transaction of its caller.

Who changes what belongs to a flow locks the flow's row first: so nobody takes its lease meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine.persistence import base, leases, models, trees
from wbengine.persistence.backends.sql import leasing, reading, shapes, tables, writing
from wbengine.persistence.backends.sql.statements import Statements

__all__ = ["Shelved", "clear", "destroy", "destroy_flow", "lock", "put_atom"]

_BOOKS: Final = tables.BOOKS.name
_DESTROY: Final = sa.text(f"DELETE FROM {_BOOKS} WHERE uuid = :uuid")
_DESTROY_FLOW: Final = sa.text(f"DELETE FROM {tables.FLOWS.name} WHERE uuid = :uuid")
_CLEAR: Final = sa.text(f"DELETE FROM {_BOOKS}")
_HOME: Final = sa.text(f"SELECT flow_uuid FROM {tables.ATOMS.name} WHERE uuid = :uuid")


def lock(
    connection: sa.Connection,
    statements: Statements,
    flow_uuid: str,
    row: Mapping[str, Any] | None,
    lease: leases.Lease | None,
) -> None:
    """Make sure that the flow's row may be changed, until the transaction ends, and write it.

    :raises LeaseLost: not under this lease.
    :raises FlowBusy: without one, and somebody runs the flow.
    :raises NotFound: without one, and the flow is not kept.
    """
    told = {"flow_uuid": flow_uuid} if lease is None else leasing.conditions(lease)
    if row is not None:
        statement = statements.write_free if lease is None else statements.write_ours
        may = connection.execute(statement, {**row, **told}).rowcount
    else:
        statement = statements.lock_free if lease is None else statements.lock_ours
        may = connection.execute(statement, told).first() is not None
    if not may and lease is None:
        raise leasing.refuse(connection, statements, flow_uuid)
    if not may and lease is not None:
        raise leasing.lost(connection, statements, lease)


def put_atom(connection: sa.Connection, statements: Statements, detail: models.AtomDetail) -> None:
    """Write an atom that is kept already, with its items."""
    home = connection.scalar(_HOME, {"uuid": detail.uuid})
    if home is None:
        raise reading.missing("atom detail", detail.uuid)
    lock(connection, statements, home, None, None)
    changes = writing.changes(home, [detail], base.items_of([detail]))
    writing.write(connection, statements, changes)


class Shelved:
    """A book on its way to the shelf."""

    def __init__(self, book: models.LogBook) -> None:
        self._book = book
        # Before the transaction: what cannot be kept is found out here.
        self._row = writing.book_row(book)
        self._changes = {flow.uuid: _changes(flow, book.uuid) for flow in book}

    def put(self, connection: sa.Connection, statements: Statements) -> None:
        """Write it, and of its flows those that nobody runs, or ran since they were read."""
        book = self._book
        kept = reading.first(connection, statements.book_for_update, uuid=book.uuid)
        row = self._row
        if kept is not None:
            merged: models.LogBook = shapes.BOOK.record(trees.BOOK, kept)
            row = writing.book_row(merged.merge(book.copy(retain_contents=False)))
        connection.execute(statements.put_book, row)
        for flow in book:
            changes = self._changes[flow.uuid]
            kept = reading.first(connection, statements.flow_for_update, flow_uuid=flow.uuid)
            if kept is not None:
                if kept["lease_epoch"] != flow.epoch or (kept["remaining"] or 0) > 0:
                    continue
                changes.flow = _merged(kept, flow)
            connection.execute(statements.put_flow, changes.flow)
            writing.write(connection, statements, changes)


def destroy(connection: sa.Connection, book_uuid: str) -> None:
    """Remove a book, with all that is in it."""
    if not connection.execute(_DESTROY, {"uuid": book_uuid}).rowcount:
        raise reading.missing("log book", book_uuid)


def destroy_flow(connection: sa.Connection, flow_uuid: str) -> None:
    """Remove a flow, with all that is in it."""
    if not connection.execute(_DESTROY_FLOW, {"uuid": flow_uuid}).rowcount:
        raise reading.missing("flow detail", flow_uuid)


def clear(connection: sa.Connection) -> None:
    """Remove all there is."""
    connection.execute(_CLEAR)


def _changes(flow: models.FlowDetail, book_uuid: str) -> writing.Changes:
    changes = writing.changes(flow.uuid, flow, base.items_of(flow))
    changes.flow = writing.flow_row(flow, book_uuid)
    return changes


def _merged(kept: Mapping[str, Any], flow: models.FlowDetail) -> shapes.Row:
    record: models.FlowDetail = shapes.FLOW.record(trees.FLOW, kept, flow.uuid)
    record.merge(flow.copy(retain_contents=False))
    return writing.flow_row(record, kept["book_uuid"])
