"""Encryption of the stored rows with the current key, after a rotation or a change of the key file.

Rows that have the current key are only read, so an interrupted run may be repeated. Engines may run
meanwhile. Without a key that encrypts, rows are decrypted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._security import sealing
from wbengine._sql import dialects
from wbengine.persistence import _sealed_fields
from wbengine.persistence.backends._sql import rows, tables
from wbengine.persistence.backends._sql.backend import SQLBackend
from wbengine.types._encrypted import NO_KEYS

__all__ = ["Reencrypted", "reencrypt"]

_ROWS_PER_TRANSACTION: Final = 200

#: Returns the changed columns of a row, or None if it has the current key.
_Change = Callable[[Mapping[str, Any]], rows.Row | None]


@dataclass
class Reencrypted:
    """What was done up to now: numbers of rows that were read, and that were written."""

    read: int = 0
    written: int = 0


def reencrypt(backend: SQLBackend) -> Iterator[Reencrypted]:
    """Encrypt all rows that have another key, and yield the progress after each transaction.

    :raises NotTrusted: if the key file lacks the key of a row, or the row is damaged; the message
        names the row.
    :raises StorageFailure: if the store is unavailable.
    """
    done = Reencrypted()
    for table, change in _CHANGES.items():
        after: Mapping[str, Any] | None = None
        while True:
            work = functools.partial(_step, table, change, backend.options.dialect, after)
            found, written = _sql.transact(backend.engine, f"Encrypting {table.name}", work)
            if not found:
                break
            done.read += len(found)
            done.written += written
            yield done
            after = found[-1]


def _step(
    table: sa.Table,
    change: _Change,
    dialect: str,
    after: Mapping[str, Any] | None,
    connection: sa.Connection,
) -> tuple[list[rows.Row], int]:
    """Read and write the next rows. They are locked until the transaction ends."""
    order = list(table.primary_key.columns)
    statement = sa.select(table).order_by(*order).limit(_ROWS_PER_TRANSACTION)
    if dialect != dialects.SQLITE:
        statement = statement.with_for_update()
    if after is not None:
        statement = statement.where(
            sa.tuple_(*order) > sa.tuple_(*(sa.literal(after[each.name]) for each in order))
        )
    found: list[rows.Row] = [dict(row) for row in connection.execute(statement).mappings()]
    written = 0
    for row in found:
        try:
            changed = change(row)
        except (exceptions.NotTrusted, *rows.DAMAGE) as error:
            identity = "/".join(str(row[each.name]) for each in order)
            raise exceptions.NotTrusted(f"{table.name}/{identity}: {error}") from error
        if changed:
            same = [each == row[each.name] for each in order]
            connection.execute(sa.update(table).where(*same).values(**changed))
            written += 1
    return found, written


def _is_current(tag: Any) -> bool:
    """Return whether a tag, or None for a text that is not encrypted, is as it is written now."""
    return (None if tag is None else sealing.key_of(tag)) == sealing.current_key()


def _record(shape: rows.Shape, row: Mapping[str, Any]) -> rows.Row | None:
    if _is_current(rows.object_of(row["more"]).get(_sealed_fields.SEALED)):
        return None
    identity = {name: row[name] for name in (*shape.keys, "kind") if name in row}
    new = shape.row({"meta": {}, **shape.tree(row)}, **identity)
    # A row without secrets stays the same.
    return {name: new[name] for name in (*shape.packed, "more") if new[name] != row[name]}


def _flow(row: Mapping[str, Any]) -> rows.Row | None:
    changed = _record(rows.FLOW, row) or {}
    command = rows.command_of(row["wish"])
    if command is not None and command.edits is not None:
        place = _sealed_fields.place_of_edits(row["uuid"])
        edits = _new_parts(command.edits, ("inputs", "results"), place)
        if edits is not None:
            changed["wish"] = rows.command_text(command._replace(edits=edits))
    return changed


def _new_parts(
    data: Mapping[str, Any], names: Iterable[str], place: tuple[str, ...]
) -> rows.Row | None:
    if _is_current(data.get(_sealed_fields.SEALED)):
        return None
    return _sealed_fields.sealed_parts(_sealed_fields.opened_parts(data, *place), names, *place)


def _parts(
    row: Mapping[str, Any], column: str, place: tuple[str, ...], names: Iterable[str] | None = None
) -> rows.Row | None:
    """Return a changed column that contains an object with encrypted values of these keys.

    :param names: None: of all keys.
    """
    data = rows.object_of(row[column])
    new = _new_parts(data, data if names is None else names, place)
    return {column: rows.text_of(new)} if new and new != data else None


def _text(row: Mapping[str, Any], column: str, place: tuple[str, ...]) -> rows.Row | None:
    """Return a changed column that contains a text of `sealing.sealed`."""
    text = row[column]
    tag = rows.object_of(text) if sealing.is_sealed(text) else None
    if text is None or _is_current(tag):
        return None
    opened = sealing.opened(text, *place)
    if sealing.is_sealed(opened):
        raise exceptions.NotTrusted(NO_KEYS)
    return {column: sealing.sealed(opened, *place)}


def _log(row: Mapping[str, Any]) -> rows.Row | None:
    place = _sealed_fields.place_of_log(row["atom_uuid"], row["attempt"], row["item"])
    return _text(row, "logged", place)


def _signal(row: Mapping[str, Any]) -> rows.Row | None:
    return _text(row, "value", _sealed_fields.place_of_signal(row["flow_uuid"], row["name"]))


def _bulk(row: Mapping[str, Any]) -> rows.Row | None:
    return _parts(row, "arguments", _sealed_fields.place_of_arguments(row["uuid"]))


def _bulk_flow(row: Mapping[str, Any]) -> rows.Row | None:
    place = _sealed_fields.place_of_arguments(row["bulk_uuid"], row["flow_uuid"])
    return _parts(row, "arguments", place)


def _job(row: Mapping[str, Any]) -> rows.Row | None:
    data = rows.object_of(row["details"])
    if data.keys() <= {"flow_uuid"} or _is_current(data.get(_sealed_fields.SEALED)):
        return None
    details = _sealed_fields.opened_details(data, row["uuid"])
    return {"details": rows.text_of(_sealed_fields.sealed_details(details, row["uuid"]))}


def _schedule(row: Mapping[str, Any]) -> rows.Row | None:
    place = _sealed_fields.place_of_inputs(row["name"])
    changed = _parts(row, "definition", place, ["inputs"]) or {}
    return {
        **changed,
        **(_text(row, "trouble", _sealed_fields.place_of_trouble(row["name"])) or {}),
    }


def _duty(row: Mapping[str, Any]) -> rows.Row | None:
    return _parts(row, "note", _sealed_fields.place_of_note(row["name"]), ["outbox"])


#: Functions that return the changed columns of a row, if it has another key.
_CHANGES: Final[Mapping[sa.Table, _Change]] = {
    tables.BOOKS: functools.partial(_record, rows.BOOK),
    tables.FLOWS: _flow,
    tables.ATOMS: functools.partial(_record, rows.ATOM),
    tables.ITEMS: functools.partial(_record, rows.ITEM),
    tables.LOGS: _log,
    tables.SIGNALS: _signal,
    tables.BULKS: _bulk,
    tables.BULK_FLOWS: _bulk_flow,
    tables.JOBS: _job,
    tables.SCHEDULES: _schedule,
    tables.DUTIES: _duty,
}
