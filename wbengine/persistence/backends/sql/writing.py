"""Writing records; each function is part of a transaction of its caller."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

import sqlalchemy as sa

from wbengine.persistence import base, models, trees
from wbengine.persistence.backends.sql import shapes
from wbengine.persistence.backends.sql.statements import Statements

__all__ = ["Changes", "book_row", "changes", "flow_row", "write"]


@dataclass
class Changes:
    """Rows to write: of one flow, of its atoms, and of their items."""

    flow_uuid: str
    flow: shapes.Row | None = None
    atoms: list[shapes.Row] = field(default_factory=list)
    items: list[shapes.Row] = field(default_factory=list)
    #: Attempts that begin: items of any others are not needed any more.
    begun: list[shapes.Row] = field(default_factory=list)


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


def write(connection: sa.Connection, statements: Statements, changed: Changes) -> None:
    """Write rows, each kind with one statement, as the next turn of a flow that is locked."""
    if not (changed.atoms or changed.items):
        return
    turn = 1 + connection.scalar(statements.latest_turn, {"flow_uuid": changed.flow_uuid})
    for row in (*changed.atoms, *changed.items):
        row["changed"] = turn
    if changed.atoms:
        connection.execute(statements.put_atoms, changed.atoms)
    if changed.begun:
        connection.execute(statements.forget_items, changed.begun)
    if changed.items:
        connection.execute(statements.put_items, changed.items)
        owners = {row["atom_uuid"] for row in changed.items}
        owners.difference_update([row["uuid"] for row in changed.atoms])
        if owners:
            touched = [{"uuid": uuid, "changed": turn} for uuid in sorted(owners)]
            connection.execute(statements.touch_atoms, touched)
