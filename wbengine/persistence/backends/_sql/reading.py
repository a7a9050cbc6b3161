"""Functions that read records. Each one runs inside its caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._logs import stored_lines
from wbengine._security import sealing
from wbengine.persistence import _sealed_fields, _trees, base, models
from wbengine.persistence._changes import batch_in_cursor, cursor_of
from wbengine.persistence.backends._sql import rows, tables
from wbengine.persistence.backends._sql.rows import Row
from wbengine.persistence.backends._sql.statements import Statements
from wbengine.types import codec

__all__ = [
    "atom", "atoms", "book", "books", "changes", "first", "flow", "flow_of_atom", "flows",
    "latest_batch", "lease", "locked_flow", "logs", "missing",
]  # fmt: skip

_T = TypeVar("_T")

_ATOMS: Final = tables.ATOMS.name
_ITEMS: Final = tables.ITEMS.name


def _select(table: sa.Table, rest: str) -> sa.TextClause:
    return sa.text(f"{tables.select(table)} {rest}")


_ALL_BOOKS: Final = _select(tables.BOOKS, "ORDER BY id")
_BOOK: Final = _select(tables.BOOKS, "WHERE uuid = :uuid")
_FLOWS_OF_BOOK: Final = _select(tables.FLOWS, "WHERE book_uuid = :uuid ORDER BY id")
_FLOW: Final = _select(tables.FLOWS, "WHERE uuid = :uuid")
_ATOMS_OF_FLOW: Final = _select(tables.ATOMS, "WHERE flow_uuid = :uuid ORDER BY id")
_ATOM: Final = _select(tables.ATOMS, "WHERE uuid = :uuid")
_FLOW_OF_ATOM: Final = sa.text(f"SELECT flow_uuid FROM {_ATOMS} WHERE uuid = :uuid")
_ITEMS_OF_FLOW: Final = _select(
    tables.ITEMS,
    f"JOIN {_ATOMS} ON {_ITEMS}.atom_uuid = {_ATOMS}.uuid WHERE {_ATOMS}.flow_uuid = :uuid"
    f" ORDER BY {_ITEMS}.atom_uuid, {_ITEMS}.attempt, {_ITEMS}.item",
)
_LOGS_OF_FLOW: Final = _select(
    tables.LOGS,
    f"JOIN {_ATOMS} ON {tables.LOGS.name}.atom_uuid = {_ATOMS}.uuid"
    f" WHERE {_ATOMS}.flow_uuid = :uuid ORDER BY {tables.LOGS.name}.id DESC LIMIT :limit",
)
_LOGS_OF_ATOM: Final = _select(tables.LOGS, "WHERE atom_uuid = :uuid ORDER BY id DESC LIMIT :limit")
_ITEMS_OF_ATOM: Final = _select(tables.ITEMS, "WHERE atom_uuid = :uuid ORDER BY attempt, item")
_ATOMS_SINCE: Final = _select(
    tables.ATOMS, "WHERE flow_uuid = :uuid AND changed > :since ORDER BY changed, id"
)
_ITEMS_SINCE: Final = _select(
    tables.ITEMS,
    "WHERE atom_uuid = :uuid AND attempt = :attempt AND changed > :since ORDER BY item",
)
_NO_LIMIT: Final = 2**62
_LATEST: Final = sa.text(f"SELECT COALESCE(MAX(changed), 0) FROM {_ATOMS} WHERE flow_uuid = :uuid")


def missing(kind: str, uuid: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"No {kind} {uuid} in the database")


def books(connection: sa.Connection, lazy: bool) -> Iterator[models.LogBook]:
    book_rows = _rows(connection, _ALL_BOOKS)
    return base.readable([_record_or_error(_book, connection, row, lazy) for row in book_rows])


def book(connection: sa.Connection, uuid: str, lazy: bool) -> models.LogBook:
    return _book(connection, _required_row(connection, _BOOK, "logbook", uuid), lazy)


def flows(connection: sa.Connection, book_uuid: str, lazy: bool) -> Iterator[models.FlowDetail]:
    _required_row(connection, _BOOK, "logbook", book_uuid)
    flow_rows = _rows(connection, _FLOWS_OF_BOOK, uuid=book_uuid)
    return base.readable([_record_or_error(_flow, connection, row, lazy) for row in flow_rows])


def flow(connection: sa.Connection, uuid: str, lazy: bool) -> models.FlowDetail:
    return _flow(connection, _required_row(connection, _FLOW, "flow detail", uuid), lazy)


def flow_records(flow_rows: Iterable[sa.Row[Any]]) -> dict[str, models.FlowDetail]:
    """Return the records of these rows by uuid, without the damaged ones."""
    records = (_record_or_error(_bare_flow, row._mapping) for row in flow_rows)
    return {each.uuid: each for each in records if isinstance(each, models.FlowDetail)}


def atoms(connection: sa.Connection, flow_uuid: str) -> Iterator[models.AtomDetail]:
    _required_row(connection, _FLOW, "flow detail", flow_uuid)
    return base.readable(_atoms(connection, flow_uuid))


def atom(connection: sa.Connection, uuid: str) -> models.AtomDetail:
    row = _required_row(connection, _ATOM, "atom detail", uuid)
    record = _atom(row)
    if record.items is not None:
        _fill(record, row["flow_uuid"], _rows(connection, _ITEMS_OF_ATOM, uuid=uuid))
    return record


def flow_of_atom(connection: sa.Connection, uuid: str) -> str:
    flow_uuid: str = _required_row(connection, _FLOW_OF_ATOM, "atom detail", uuid)["flow_uuid"]
    return flow_uuid


def logs(
    connection: sa.Connection, flow_uuid: str, atom_uuid: str | None, limit: int | None
) -> list[models.LogChunk]:
    _required_row(connection, _FLOW, "flow detail", flow_uuid)
    statement = _LOGS_OF_FLOW if atom_uuid is None else _LOGS_OF_ATOM
    log_rows = _rows(connection, statement, uuid=atom_uuid or flow_uuid, limit=limit or _NO_LIMIT)
    chunks = (
        models.LogChunk(
            row["atom_uuid"],
            row["attempt"],
            row["item"],
            stored_lines.lines_of({"lines": _parsed(row)}),
        )
        for row in reversed(list(log_rows))
    )
    # A write whose commit was confirmed too late was repeated, with its chunks.
    return list(dict.fromkeys(chunks))


def _parsed(row: Row) -> Any:
    place = _sealed_fields.place_of_log(row["atom_uuid"], row["attempt"], row["item"])
    try:
        return json.loads(sealing.opened(row["logged"], *place))
    except (ValueError, RecursionError, exceptions.NotTrusted):  # Damaged lines are omitted.
        return None


def locked_flow(
    connection: sa.Connection, statements: Statements, flow_uuid: str
) -> tuple[models.FlowDetail, Row] | None:
    """Lock and return a flow without its atoms, and its row; None if it does not exist."""
    row = first(connection, statements.flow_for_update, flow_uuid=flow_uuid)
    return None if row is None else (_bare_flow(row), row)


def lease(connection: sa.Connection, statements: Statements, flow_uuid: str) -> sa.Row[Any]:
    row = connection.execute(statements.lease, {"flow_uuid": flow_uuid}).first()
    if row is None:
        raise missing("flow detail", flow_uuid)
    return row


def changes(connection: sa.Connection, uuid: str, since: str | None) -> base.Changes:
    row = _required_row(connection, _FLOW, "flow detail", uuid)
    latest = latest_batch(connection, uuid)
    secret = f"{row['id']}-{row['birth']}"
    cursor, detail = cursor_of(secret, latest), _flow(connection, row, lazy=True)
    since_batch = batch_in_cursor(since, secret, latest)
    if since_batch is None:
        return base.Changes(cursor, True, detail, list(_without_damage(_atoms(connection, uuid))))
    after = {"uuid": uuid, "since": since_batch}
    changed_atoms = [_atom(changed) for changed in _rows(connection, _ATOMS_SINCE, **after)]
    items: dict[str, list[models.ItemDetail]] = {}
    for each in changed_atoms:
        if each.items is not None:
            of_atom = {**after, "uuid": each.uuid, "attempt": each.items.attempt}
            if changed := _rows(connection, _ITEMS_SINCE, **of_atom):
                items[each.uuid] = [_item(item, uuid) for item in changed]
    return base.Changes(cursor, False, detail, changed_atoms, items)


def latest_batch(connection: sa.Connection, flow_uuid: str) -> int:
    """Return the number of the last batch that wrote an atom. Locking the flow keeps it stable."""
    number: int = connection.scalar(_LATEST, {"uuid": flow_uuid})
    return number


def _book(connection: sa.Connection, row: Row, lazy: bool) -> models.LogBook:
    record: models.LogBook = rows.BOOK.record(_trees.BOOK, row)
    if not lazy:
        for each in _rows(connection, _FLOWS_OF_BOOK, uuid=record.uuid):
            record.add(_flow(connection, each, lazy=False))
    return record


def _flow_record(row: Row) -> models.FlowDetail:
    record: models.FlowDetail = rows.FLOW.record(_trees.FLOW, row, row["uuid"])
    record.epoch = row["lease_epoch"]
    if record.created is None:
        record.created = row["created"] or None
    return record


def _bare_flow(row: Row) -> models.FlowDetail:
    """Return a flow without its atoms, for its state and notes.

    If classes of this process cannot decode a value, such as an argument of the factory, values of
    classes stay encoded.
    """
    try:
        return _flow_record(row)
    except exceptions.CorruptRecord as error:
        if not isinstance(error.__cause__, exceptions.UndecodableValue):
            raise
    with codec.copying():
        return _flow_record(row)


def _flow(connection: sa.Connection, row: Row, lazy: bool) -> models.FlowDetail:
    if lazy:
        return _bare_flow(row)
    record = _flow_record(row)
    record.add_all(_without_damage(_atoms(connection, record.uuid)))
    return record


def _atoms(
    connection: sa.Connection, flow_uuid: str
) -> list[models.AtomDetail | exceptions.CorruptRecord]:
    records = [
        _record_or_error(_atom, row) for row in _rows(connection, _ATOMS_OF_FLOW, uuid=flow_uuid)
    ]
    positions = {
        each.uuid: position
        for position, each in enumerate(records)
        if isinstance(each, models.AtomDetail) and each.items is not None
    }
    if positions:
        items: dict[str, list[Row]] = {uuid: [] for uuid in positions}
        for row in _rows(connection, _ITEMS_OF_FLOW, uuid=flow_uuid):
            items.get(row["atom_uuid"], []).append(row)
        for uuid, position in positions.items():
            records[position] = _record_or_error(_fill, records[position], flow_uuid, items[uuid])
    return records


def _atom(row: Row) -> models.AtomDetail:
    record: models.AtomDetail = rows.ATOM.record(row["kind"], row, row["flow_uuid"])
    return record


def _item(row: Row, flow_uuid: str) -> models.ItemDetail:
    record: models.ItemDetail = rows.ITEM.record(_trees.ITEM, row, flow_uuid, index=row["item"])
    return record


def _fill(record: models.AtomDetail, flow_uuid: str, item_rows: Iterable[Row]) -> models.AtomDetail:
    items = record.items
    assert items is not None
    for row in item_rows:
        if row["attempt"] == items.attempt:
            try:
                items.put(_item(row, flow_uuid))
            except ValueError as error:
                raise rows.ITEM.damaged(row, error, flow_uuid) from error
    return record


def _without_damage(records: Iterable[_T | exceptions.CorruptRecord]) -> Iterator[_T]:
    for each in records:
        if isinstance(each, exceptions.CorruptRecord):
            raise each
        yield each


def _record_or_error(make: Callable[..., _T], *args: Any) -> _T | exceptions.CorruptRecord:
    try:
        return make(*args)
    except exceptions.CorruptRecord as error:
        return error


def _rows(connection: sa.Connection, statement: sa.TextClause, **values: Any) -> list[Row]:
    result = connection.execute(statement, values)
    names = list(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def first(connection: sa.Connection, statement: sa.TextClause, **values: Any) -> Row | None:
    return next(iter(_rows(connection, statement, **values)), None)


def _required_row(connection: sa.Connection, statement: sa.TextClause, kind: str, uuid: str) -> Row:
    row = first(connection, statement, uuid=uuid)
    if row is None:
        raise missing(kind, uuid)
    return row
