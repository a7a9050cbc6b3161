"""Writing records; each function is part of a transaction of its caller."""

from __future__ import annotations

import itertools
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from wbengine.persistence import base, leases, models, trees
from wbengine.persistence.backends.sql import leasing, reading, shapes
from wbengine.persistence.backends.sql.statements import Statements

__all__ = ["Changes", "book_row", "changes", "flow_row", "write", "write_turn"]

#: More than one process writes; and so many flows are not run that the column would be too narrow.
_TURNS_PER_LEASE: Final = 1 << 36
#: Of all flows of this process: so it rises for each of them.
_turns: Final = itertools.count(1)


@dataclass
class Changes:
    """Rows to write: of one flow, of its atoms, and of their items."""

    flow_uuid: str
    flow: shapes.Row | None = None
    atoms: list[shapes.Row] = field(default_factory=list)
    items: list[shapes.Row] = field(default_factory=list)
    #: Attempts that begin: items of any others are not needed any more.
    begun: list[shapes.Row] = field(default_factory=list)
    #: Atoms of which only items changed.
    touched: list[shapes.Row] = field(default_factory=list)


def book_row(book: models.LogBook) -> shapes.Row:
    return shapes.BOOK.row(trees.tree_of(book))


def flow_row(flow: models.FlowDetail, book_uuid: str | None = None) -> shapes.Row:
    """Its book need be told only where the row may be new."""
    row = shapes.FLOW.row(trees.tree_of(flow))
    beside = {"created": flow.created or 0.0, "birth": secrets.randbits(62)}
    return {**row, "book_uuid": book_uuid, **beside}


def changes(
    flow_uuid: str, atoms: Iterable[models.AtomDetail], items: base.ItemChanges = base.NO_ITEMS
) -> Changes:
    """Make the rows of records: before the transaction, for it takes the most time, and may fail.

    :raises NotEncodable: a value cannot be kept.
    :raises InvalidFormat: a uuid cannot.
    """
    made = Changes(flow_uuid)
    for atom in atoms:
        tree = trees.tree_of(atom)
        made.atoms.append(shapes.ATOM.row(tree, flow_uuid=flow_uuid, kind=atom.kind))
        if atom.items is not None and items.get(atom.uuid):
            made.begun.append({"atom_uuid": atom.uuid, "attempt": atom.items.attempt})
    for atom_uuid, changed in items.items():
        for item in changed:
            tree = trees.tree_of(item)
            index = tree.pop("index")
            made.items.append(shapes.ITEM.row(tree, atom_uuid=atom_uuid, item=index))
    return made


def write(
    connection: sa.Connection,
    statements: Statements,
    changed: Changes,
    lease: leases.Lease | None = None,
) -> None:
    """Write rows, each kind with one statement, as the next turn of a flow that is locked.

    Under a lease the number of the turn is known: nobody else writes, and later ones are higher.
    """
    if not (changed.atoms or changed.items):
        return
    if lease is not None:
        _number(changed, lease.epoch * _TURNS_PER_LEASE + next(_turns))
    else:
        _number(changed, 1 + reading.latest_turn(connection, changed.flow_uuid))
    for statement, rows in _parts(statements, changed):
        connection.execute(statement, rows)


def write_turn(
    driver: sqlite3.Connection, statements: Statements, changed: Changes, lease: leases.Lease
) -> bool:
    """A turn under a lease, on the driver's own connection to sqlite: a third of the time.

    False: `lease` is not the flow's latest one, and nothing is written.
    """
    told = leasing.conditions(lease)
    if changed.flow is not None:
        row = {**changed.flow, **told}
        if not driver.execute(statements.write_ours.text, row).rowcount:
            return False
    elif driver.execute(statements.lock_ours.text, told).fetchone() is None:
        return False
    _number(changed, lease.epoch * _TURNS_PER_LEASE + next(_turns))
    for statement, rows in _parts(statements, changed):
        driver.executemany(statement.text, rows)
    return True


def _number(changed: Changes, turn: int) -> None:
    for row in (*changed.atoms, *changed.items):
        row["changed"] = turn
    if changed.items:
        own = {row["uuid"] for row in changed.atoms}
        touched = {row["atom_uuid"] for row in changed.items} - own
        changed.touched = [{"uuid": uuid, "changed": turn} for uuid in sorted(touched)]


def _parts(
    statements: Statements, changed: Changes
) -> Iterator[tuple[sa.TextClause, list[shapes.Row]]]:
    """What there is to write, in this order."""
    parts = (
        (statements.put_atoms, changed.atoms),
        (statements.forget_items, changed.begun),
        (statements.put_items, changed.items),
        (statements.touch_atoms, changed.touched),
    )
    return ((statement, rows) for statement, rows in parts if rows)
