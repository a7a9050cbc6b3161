"""Reading records; each function is part of a transaction of its caller."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.persistence import base, models, trees
from wbengine.persistence.backends.sql import counting, shapes, tables
from wbengine.persistence.backends.sql.shapes import Row
from wbengine.persistence.changes import is_number

__all__ = [
    "atom", "atoms", "book", "books", "changes", "first", "flow", "flows", "latest_turn", "missing",
]  # fmt: skip

_T = TypeVar("_T")

_ATOMS: Final = tables.ATOMS.name
_ITEMS: Final = tables.ITEMS.name


def _select(table: sa.Table, rest: str) -> sa.TextClause:
    return sa.text(f"{tables.select(table)} {rest}")


_ALL_BOOKS: Final = _select(tables.BOOKS, "ORDER BY id")
_BOOK: Final = _select(tables.BOOKS, "WHERE uuid = :uuid")
# By their number: sqlite would believe the index what the book of a flow is (the checksums of other
# rows have what they belong to).
_FLOWS_OF_BOOK: Final = _select(
    tables.FLOWS,
    f"WHERE id IN (SELECT id FROM {tables.FLOWS.name} WHERE book_uuid = :uuid) ORDER BY id",
)
_FLOW: Final = _select(tables.FLOWS, "WHERE uuid = :uuid")
_ATOMS_OF_FLOW: Final = _select(tables.ATOMS, "WHERE flow_uuid = :uuid ORDER BY id")
_ATOM: Final = _select(tables.ATOMS, "WHERE uuid = :uuid")
_ITEMS_OF_FLOW: Final = _select(
    tables.ITEMS,
    f"JOIN {_ATOMS} ON {_ITEMS}.atom_uuid = {_ATOMS}.uuid WHERE {_ATOMS}.flow_uuid = :uuid"
    f" ORDER BY {_ITEMS}.atom_uuid, {_ITEMS}.attempt, {_ITEMS}.item",
)
_ATOMS_SINCE: Final = _select(
    tables.ATOMS, "WHERE flow_uuid = :uuid AND changed > :since ORDER BY changed, id"
)
_ITEMS_SINCE: Final = _select(
    tables.ITEMS,
    "WHERE atom_uuid = :uuid AND attempt = :attempt AND changed > :since ORDER BY item",
)
_LATEST: Final = sa.text(f"SELECT COALESCE(MAX(changed), 0) FROM {_ATOMS} WHERE flow_uuid = :uuid")
_ITEMS_OF_ATOM: Final = _select(tables.ITEMS, "WHERE atom_uuid = :uuid ORDER BY attempt, item")


def missing(what: str, uuid: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"No {what} {uuid} is kept in the database")


def books(connection: sa.Connection, lazy: bool) -> Iterator[models.LogBook]:
    own = _rows(connection, _ALL_BOOKS)
    return base.readable([_attempt(lambda row: _book(connection, row, lazy), row) for row in own])


def book(connection: sa.Connection, uuid: str, lazy: bool) -> models.LogBook:
    return _book(connection, _one(connection, _BOOK, "log book", uuid), lazy)


def flows(connection: sa.Connection, book_uuid: str, lazy: bool) -> Iterator[models.FlowDetail]:
    _one(connection, _BOOK, "log book", book_uuid)
    return base.readable(_flows(connection, book_uuid, lazy))


def flow(connection: sa.Connection, uuid: str, lazy: bool) -> models.FlowDetail:
    return _flow(connection, _one(connection, _FLOW, "flow detail", uuid), lazy)


def changes(connection: sa.Connection, uuid: str, since: str | None) -> base.Changes:
    row = _one(connection, _FLOW, "flow detail", uuid)
    latest = latest_turn(connection, uuid)
    name = f"{row['id']}-{row['birth']}"
    cursor, detail = f"{name}.{latest}", _flow(connection, row, lazy=True)
    after = _turn(since, name, latest)
    if after is None or row["lease_epoch"] != (row["wish_epoch"] or 0):
        # Or an older version, which is running on since before the upgrade, numbers no turns.
        every = [_intact(each) for each in _atoms(connection, uuid)]
        return base.Changes(cursor, True, detail, every)
    found = [_atom(told) for told in _rows(connection, _ATOMS_SINCE, uuid=uuid, since=after)]
    items: dict[str, list[models.ItemDetail]] = {}
    for each in found:
        if each.items is not None:
            of_atom = {"uuid": each.uuid, "attempt": each.items.attempt, "since": after}
            rows = _rows(connection, _ITEMS_SINCE, **of_atom)
            if rows:
                items[each.uuid] = [_item(told, uuid) for told in rows]
    return base.Changes(cursor, False, detail, found, items)


def latest_turn(connection: sa.Connection, flow_uuid: str) -> int:
    """In which turn an atom was written last; who has locked the flow, writes the next one."""
    found: int = connection.scalar(_LATEST, {"uuid": flow_uuid})
    return found


def _turn(cursor: str | None, name: str, latest: int) -> int | None:
    """The turn that a cursor tells of; None: it is none of this flow."""
    told, _, turn = (cursor or "").partition(".")
    if told != name or not is_number(turn) or int(turn) > latest:
        return None
    return int(turn)


def atoms(connection: sa.Connection, flow_uuid: str) -> Iterator[models.AtomDetail]:
    _one(connection, _FLOW, "flow detail", flow_uuid)
    return base.readable(_atoms(connection, flow_uuid))


def atom(connection: sa.Connection, uuid: str) -> models.AtomDetail:
    row = _one(connection, _ATOM, "atom detail", uuid)
    record = _atom(row)
    if record.items is not None:
        own = _rows(connection, _ITEMS_OF_ATOM, uuid=uuid)
        _fill(connection, record, row["flow_uuid"], own)
    return record


def _book(connection: sa.Connection, row: Row, lazy: bool) -> models.LogBook:
    record: models.LogBook = shapes.BOOK.record(trees.BOOK, row)
    if not lazy:
        for each in _flows(connection, record.uuid, lazy=False):
            record.add(_intact(each))
    return record


def _flow(connection: sa.Connection, row: Row, lazy: bool) -> models.FlowDetail:
    record: models.FlowDetail = shapes.FLOW.record(trees.FLOW, row, row["uuid"])
    record.epoch = row["lease_epoch"]
    if record.created is None:
        record.created = row["created"] or None
    if not lazy:
        record.add_all(_intact(each) for each in _atoms(connection, record.uuid))
    return record


def _flows(
    connection: sa.Connection, book_uuid: str, lazy: bool
) -> list[models.FlowDetail | exceptions.CorruptRecord]:
    own = _rows(connection, _FLOWS_OF_BOOK, uuid=book_uuid)
    found = [_attempt(lambda row: _flow(connection, row, lazy), row) for row in own]
    lost = counting.lost(connection, counting.FLOWS, book_uuid, own)
    return found if lost is None else [*found, lost]


def _atoms(
    connection: sa.Connection, flow_uuid: str
) -> list[models.AtomDetail | exceptions.CorruptRecord]:
    own = _rows(connection, _ATOMS_OF_FLOW, uuid=flow_uuid)
    found = [_attempt(_atom, row) for row in own]
    lost = counting.lost(connection, counting.ATOMS, flow_uuid, own)
    if lost is not None:
        found.append(lost)
    mapped = {
        each.uuid: place
        for place, each in enumerate(found)
        if isinstance(each, models.AtomDetail) and each.items is not None
    }
    if not mapped:
        return found
    items: dict[str, list[Row]] = {uuid: [] for uuid in mapped}
    for row in _rows(connection, _ITEMS_OF_FLOW, uuid=flow_uuid):
        items.get(row["atom_uuid"], []).append(row)
    for uuid, place in mapped.items():
        fill = functools.partial(_fill, connection, _intact(found[place]), flow_uuid)
        found[place] = _attempt(fill, items[uuid])
    return found


def _atom(row: Row) -> models.AtomDetail:
    record: models.AtomDetail = shapes.ATOM.record(row["kind"], row, row["flow_uuid"])
    return record


def _item(row: Row, flow_uuid: str) -> models.ItemDetail:
    record: models.ItemDetail = shapes.ITEM.record(trees.ITEM, row, flow_uuid, index=row["item"])
    return record


def _fill(
    connection: sa.Connection, record: models.AtomDetail, flow_uuid: str, found: Sequence[Row]
) -> models.AtomDetail:
    """Give an atom its items."""
    items = record.items
    assert items is not None
    for row in found:
        if row["attempt"] != items.attempt:
            continue
        try:
            items.put(_item(row, flow_uuid))
        except ValueError as error:
            raise shapes.ITEM.damaged(row, error, flow_uuid) from error
    lost = counting.lost(connection, counting.ITEMS, record.uuid, found)
    if lost is not None:
        lost.flow = flow_uuid
        raise lost
    return record


def _intact(found: _T | exceptions.CorruptRecord) -> _T:
    if isinstance(found, exceptions.CorruptRecord):
        raise found
    return found


def _attempt(make: Callable[[Any], _T], told: Any) -> _T | exceptions.CorruptRecord:
    try:
        return make(told)
    except exceptions.CorruptRecord as error:
        return error


def _rows(connection: sa.Connection, statement: sa.TextClause, **values: Any) -> list[Row]:
    result = connection.execute(statement, values)
    names = list(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def first(connection: sa.Connection, statement: sa.TextClause, **values: Any) -> Row | None:
    """The one row that there may be.

    :raises CorruptRecord: it is another one than was asked for.
    """
    found = _rows(connection, statement, **values)
    if found and found[0]["uuid"] not in values.values():
        raise counting.misled(str(*values.values()))
    return found[0] if found else None


def _one(connection: sa.Connection, statement: sa.TextClause, what: str, uuid: str) -> Row:
    row = first(connection, statement, uuid=uuid)
    if row is None:
        raise missing(what, uuid)
    return row
