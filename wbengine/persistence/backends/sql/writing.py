"""Writing records; each function is part of a transaction of its caller.

Who changes what belongs to a flow locks the flow's row first: so nobody takes its lease meanwhile.
"""

from __future__ import annotations

import itertools
import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions, states
from wbengine.persistence import base, leases, models, trees
from wbengine.persistence.backends.sql import reading, rows
from wbengine.persistence.backends.sql.statements import Statements

__all__ = [
    "NewBook", "Turn", "as_statement", "hasten_job", "lease_conditions", "lock", "tell_job",
    "turn_of", "write_on_driver",
]  # fmt: skip

#: More than one process writes; and so many flows are not run that the column would be too narrow.
_TURNS_PER_LEASE: Final = 1 << 36
#: Characters of rows from which on a turn is several statements.
_LARGE: Final = 200_000
#: Of all flows of this process: so it rises for each of them.
_turns: Final = itertools.count(1)


@dataclass(slots=True)
class Turn:
    """Rows to write: of one flow, of its atoms, and of their items."""

    flow_uuid: str
    flow: rows.Row | None = None
    atoms: list[rows.Row] = field(default_factory=list)
    items: list[rows.Row] = field(default_factory=list)
    #: Attempts that begin: items of any others are not needed any more.
    begun: list[rows.Row] = field(default_factory=list)
    logs: list[rows.Row] = field(default_factory=list)

    def number_rows(self, number: int) -> list[rows.Row]:
        """Let all be of turn `number`; returns the atoms of which only items changed."""
        for row in (*self.atoms, *self.items):
            row["changed"] = number
        touched = {row["atom_uuid"] for row in self.items} - {row["uuid"] for row in self.atoms}
        return [{"uuid": uuid, "changed": number} for uuid in sorted(touched)]

    def parts(
        self, statements: Statements, number: int
    ) -> Iterator[tuple[sa.TextClause, list[rows.Row]]]:
        """What there is to write besides the flow's row, in this order, as turn `number`."""
        touched = self.number_rows(number)
        parts = (
            (statements.put_atoms, self.atoms),
            (statements.forget_items, self.begun),
            (statements.put_items, self.items),
            (statements.touch_atoms, touched),
            (statements.forget_logs, [row for row in self.logs if row["oldest"] > 0]),
            (statements.put_logs, self.logs),
        )
        return ((statement, found) for statement, found in parts if found)

    def write(
        self, connection: sa.Connection, statements: Statements, lease: leases.Lease | None = None
    ) -> None:
        """Write what is in a flow that is locked, each kind of row with one statement."""
        if not (self.atoms or self.items or self.logs):
            return
        if lease is not None:
            number = _number(lease)
        else:
            number = 1 + reading.latest_turn(connection, self.flow_uuid)
        for statement, found in self.parts(statements, number):
            connection.execute(statement, found)


def turn_of(
    flow: models.FlowDetail | str,
    atoms: Iterable[models.AtomDetail],
    items: base.ItemChanges = base.NO_ITEMS,
    book_uuid: str | None = None,
    logs: Iterable[models.LogChunk] = (),
) -> Turn:
    """Make the rows of records: before the transaction, for it takes the most time, and may fail.

    The flow's own row is among them unless only its uuid is told; its book need be told only where
    that row may be new.

    :raises NotEncodable: a value cannot be kept.
    :raises InvalidFormat: a uuid cannot.
    """
    made = Turn(flow) if isinstance(flow, str) else Turn(flow.uuid, _flow_row(flow, book_uuid))
    for atom in atoms:
        tree = trees.tree_of(atom)
        made.atoms.append(rows.ATOM.row(tree, flow_uuid=made.flow_uuid, kind=atom.kind))
        if atom.items is not None and items.get(atom.uuid):
            made.begun.append({"atom_uuid": atom.uuid, "attempt": atom.items.attempt})
    for atom_uuid, changed in items.items():
        for item in changed:
            tree = trees.tree_of(item)
            index = tree.pop("index")
            made.items.append(rows.ITEM.row(tree, atom_uuid=atom_uuid, item=index))
    for chunk in logs:
        made.logs.append(
            {
                "atom_uuid": chunk.atom_uuid,
                "attempt": chunk.attempt,
                "oldest": chunk.attempt - base.LOGGED_ATTEMPTS,
                "item": chunk.item,
                "logged": json.dumps(chunk.lines),
            }
        )
    return made


def write_on_driver(
    driver: sqlite3.Connection, statements: Statements, turn: Turn, lease: leases.Lease
) -> bool:
    """Write a turn under a lease on the driver's own connection to sqlite: a third of the time.

    False: `lease` is not the flow's latest one, and nothing is written.
    """
    told = lease_conditions(lease)
    if is_statement(statements, turn):
        turn.number_rows(_number(lease))
        columns = statements.atom_columns
        values = [row[name] for row in turn.atoms for name in columns]
        text = statements.atom_turns[len(turn.atoms)]
        return driver.execute(text, (*values, *told.values())).rowcount > 0
    if turn.flow is not None:
        if not driver.execute(statements.write_ours.text, {**turn.flow, **told}).rowcount:
            return False
    elif driver.execute(statements.lock_ours.text, told).fetchone() is None:
        return False
    for statement, found in turn.parts(statements, _number(lease)):
        driver.executemany(statement.text, found)
    return True


def is_statement(statements: Statements, turn: Turn) -> bool:
    """Whether to write a turn on the driver is a single statement."""
    more = turn.flow or turn.items or turn.begun or turn.logs
    return len(turn.atoms) in statements.atom_turns and not more


def as_statement(
    statements: Statements, turn: Turn, lease: leases.Lease
) -> tuple[sa.TextClause, dict[str, Any]] | None:
    """A turn under a lease as one statement, and the values in that; for PostgreSQL.

    It may be executed twice: it writes whole rows.  None: it adds to logs; or it is so large that
    the rows, which go as JSON, would take longer that way.
    """
    if turn.logs:
        return None
    number = _number(lease)
    touched = [row["uuid"] for row in turn.number_rows(number)]
    given = {"atoms": turn.atoms, "items": turn.items, "begun": turn.begun}
    texts = {name: rows.text_of(found) for name, found in given.items()}
    if sum(map(len, texts.values())) > _LARGE:
        return None
    statement = statements.turns[turn.flow is not None, bool(turn.items or turn.begun)]
    more = {"touched": touched, "number": number}
    return statement, {**(turn.flow or {}), **lease_conditions(lease), **texts, **more}


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
    told = {"flow_uuid": flow_uuid} if lease is None else lease_conditions(lease)
    if row is not None:
        statement = statements.write_free if lease is None else statements.write_ours
        may = connection.execute(statement, {**row, **told}).rowcount
    else:
        statement = statements.lock_free if lease is None else statements.lock_ours
        may = connection.execute(statement, told).first() is not None
    if not may:
        raise refused(connection, statements, flow_uuid, lease)


def refused(
    connection: sa.Connection, statements: Statements, flow_uuid: str, lease: leases.Lease | None
) -> exceptions.WbengineException:
    """Why the flow may not be changed under this lease, or without one."""
    try:
        row = reading.lease(connection, statements, flow_uuid)
    except exceptions.NotFound as error:
        return error if lease is None else leases.lost(lease, kept=False)
    if lease is not None:
        return leases.lost(lease, row.lease_owner)
    # Its time may have ended since the refusal: that is told all the same.
    held = leases.Lease(flow_uuid, row.lease_owner or "", row.lease_epoch)
    return leases.busy(held, max(0.0, row.remaining or 0.0))


def lease_conditions(lease: leases.Lease) -> dict[str, object]:
    """What a statement asks of the row of a flow for this lease."""
    return {"flow_uuid": lease.flow, "lease_owner": lease.owner, "lease_epoch": lease.epoch}


def hasten_job(
    connection: sa.Connection, statements: Statements, flow_uuid: str, claims: int = 0
) -> None:
    """Let the job of a flow wait for its time no longer, if it was claimed so many times."""
    told = {"flow_uuid": flow_uuid, "claims": claims}
    if connection.execute(statements.hasten_job, told).rowcount:
        tell_job(connection, statements, flow_uuid)


def tell_job(connection: sa.Connection, statements: Statements, flow_uuid: str) -> None:
    """Wake conductors where the database can, for this job may be claimed."""
    if statements.tell_job is not None:
        connection.execute(statements.tell_job, {"flow_uuid": flow_uuid})


class NewBook:
    """A book to be written."""

    def __init__(self, book: models.LogBook) -> None:
        self._book = book
        # Before the transaction: what cannot be kept is found out here.
        self.row = rows.BOOK.row(trees.tree_of(book))
        self.turns = [turn_of(flow, flow, base.items_of(flow), book.uuid) for flow in book]

    def unfinished(self, connection: sa.Connection, statements: Statements) -> str | None:
        """Lock the book of a key: the uuid of the flow that has the key, unless that has ended.

        The lock holds until the transaction ends, also where the book is new.
        """
        connection.execute(statements.add_book, self.row)
        kept = reading.first(connection, statements.book_for_update, uuid=self._book.uuid)
        assert kept is not None
        book: models.LogBook = rows.BOOK.record(trees.BOOK, kept)
        uuid = book.meta.get(models.UNIQUE)
        if uuid is None:
            return None
        flow = reading.first(connection, statements.flow_for_update, flow_uuid=uuid)
        if flow is None or flow["state"] in states.FLOW_ENDED:
            return None
        return str(uuid)

    def put(self, connection: sa.Connection, statements: Statements) -> None:
        """Write it, and of its flows those that nobody runs, or ran since they were read."""
        book = self._book
        kept = reading.first(connection, statements.book_for_update, uuid=book.uuid)
        row = self.row
        if kept is not None:
            merged: models.LogBook = rows.BOOK.record(trees.BOOK, kept)
            merged.merge(book.copy(retain_contents=False))
            row = rows.BOOK.row(trees.tree_of(merged))
        connection.execute(statements.put_book, row)
        for flow, turn in zip(book, self.turns, strict=True):
            kept = reading.first(connection, statements.flow_for_update, flow_uuid=flow.uuid)
            if kept is not None:
                if kept["lease_epoch"] != flow.epoch or (kept["remaining"] or 0) > 0:
                    continue
                of_flow: models.FlowDetail = rows.FLOW.record(trees.FLOW, kept, flow.uuid)
                of_flow.merge(flow.copy(retain_contents=False))
                turn.flow = _flow_row(of_flow, kept["book_uuid"])
            connection.execute(statements.put_flow, turn.flow)
            turn.write(connection, statements)


def put_new_books(
    connection: sa.Connection, statements: Statements, books: Iterable[NewBook]
) -> None:
    """Write many that nobody else can have, whose flows no engine had: a few statements for all."""
    made = list(books)
    connection.execute(statements.put_book, [book.row for book in made])
    turns = [turn for book in made for turn in book.turns]
    connection.execute(statements.put_flow, [turn.flow for turn in turns if turn.flow is not None])
    for turn in turns:
        turn.write(connection, statements)


def _flow_row(flow: models.FlowDetail, book_uuid: str | None) -> rows.Row:
    row = rows.FLOW.row(trees.tree_of(flow))
    first = {"book_uuid": book_uuid, "birth": secrets.randbits(62), "lease_epoch": flow.epoch}
    return {**row, "created": flow.created or 0.0, **first}


def _number(lease: leases.Lease) -> int:
    """That of a turn under a lease: nobody else writes, and those of later leases are higher."""
    return lease.epoch * _TURNS_PER_LEASE + next(_turns)
