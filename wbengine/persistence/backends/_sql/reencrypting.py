"""Encryption of the stored rows with the current key, after a rotation or a change of the key file.

Rows that have the current key are only read, so an interrupted run may be repeated. Engines may run
meanwhile. Without a key that encrypts, rows are decrypted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._security import sealing
from wbengine._sql import dialects
from wbengine.persistence import _sealed_fields as sealed
from wbengine.persistence._commands import FlowCommand
from wbengine.persistence.backends._sql import paging, rows, tables
from wbengine.persistence.backends._sql.backend import SQLBackend
from wbengine.types._encrypted import NO_KEYS

__all__ = ["command_with_current_key", "reencrypt", "with_current_key"]

_ROWS_PER_TRANSACTION: Final = 200

#: Returns the changed columns of a row, or nothing if it has the current key.
_Change = Callable[[Mapping[str, Any]], rows.Row]


def reencrypt(backend: SQLBackend) -> Iterator[tuple[int, int]]:
    """Encrypt all rows that have another key.

    Yield for each transaction how many rows it has read, and how many of them it has written.

    :raises NotTrusted: if the key file lacks the key of a row, or the row is damaged; the message
        names the row.
    :raises StorageFailure: if the store is unavailable.
    """
    for table, changes in _CHANGES.items():
        after: Mapping[str, Any] | None = None
        while True:
            work = functools.partial(_step, table, changes, backend.options.dialect, after)
            found, written = _sql.transact(backend.engine, f"Encrypting {table.name}", work)
            if not found:
                break
            yield len(found), written
            after = found[-1]


def _step(
    table: sa.Table,
    changes: Sequence[_Change],
    dialect: str,
    after: Mapping[str, Any] | None,
    connection: sa.Connection,
) -> tuple[list[rows.Row], int]:
    """Read and write the next rows. They are locked until the transaction ends."""
    order = list(table.primary_key.columns)
    statement = paging.next_rows(table, after, _ROWS_PER_TRANSACTION, dialect)
    if dialect != dialects.SQLITE:
        statement = statement.with_for_update()
    found: list[rows.Row] = [dict(row) for row in connection.execute(statement).mappings()]
    written = 0
    for row in found:
        changed = _changed(table, changes, row)
        if changed:
            same = [each == row[each.name] for each in order]
            connection.execute(sa.update(table).where(*same).values(**changed))
            written += 1
    return found, written


def with_current_key(table: sa.Table, row: rows.Row) -> rows.Row:
    """Return a row whose texts are encrypted with the current key; unchanged without keys.

    :raises NotTrusted: as `reencrypt`.
    """
    if sealing.ring() is None:
        return row
    return {**row, **_changed(table, _CHANGES.get(table, ()), row)}


def command_with_current_key(flow_uuid: str, command: FlowCommand) -> FlowCommand:
    """Return a command whose edits are encrypted with the current key; unchanged without keys.

    :raises NotTrusted: as `reencrypt`.
    """
    if sealing.ring() is None or command.edits is None:
        return command
    place = sealed.place_of_edits(flow_uuid)
    return command._replace(edits=_parts(command.edits, ("inputs", "results"), place))


def _changed(table: sa.Table, changes: Sequence[_Change], row: Mapping[str, Any]) -> rows.Row:
    try:
        return {name: text for change in changes for name, text in change(row).items()}
    except (exceptions.NotTrusted, *rows.DAMAGE) as error:
        identity = "/".join(str(row[each.name]) for each in paging.identity(table))
        raise exceptions.NotTrusted(f"{table.name}/{identity}: {error}") from error


def _is_current(tag: Any) -> bool:
    """Return whether a tag, or None for a text that is not encrypted, is as it is written now."""
    return (None if tag is None else sealing.key_of(tag)) == sealing.current_key()


def _record(shape: rows.Shape, row: Mapping[str, Any]) -> rows.Row:
    if _is_current(rows.object_of(row["more"]).get(sealed.SEALED)):
        return {}
    identity = {name: row[name] for name in (*shape.keys, "kind") if name in row}
    defaults: rows.Row = {"meta": {}} if "meta" in shape.packed else {}
    new = shape.row({**defaults, **shape.tree(row)}, **identity)
    # A row without secrets stays the same.
    return {name: new[name] for name in (*shape.packed, "more") if new[name] != row[name]}


def _edits(row: Mapping[str, Any]) -> rows.Row:
    command = rows.command_of(row["wish"])
    if command is None:
        return {}
    new = command_with_current_key(row["uuid"], command)
    return {} if new == command else {"wish": rows.command_text(new)}


@dataclass(frozen=True)
class _Column:
    """A column with an encrypted text, or an object with encrypted values.

    :ivar place_of: returns the place of the text, from the values of the columns `keys`.
    :ivar names: returns the names of the encrypted values; None: the text is encrypted as a whole.
    """

    name: str
    place_of: Callable[..., tuple[str, ...]]
    keys: tuple[str, ...]
    names: Callable[[rows.Row], Iterable[str]] | None = None

    def __call__(self, row: Mapping[str, Any]) -> rows.Row:
        text, place = row[self.name], self.place_of(*(row[key] for key in self.keys))
        if text is None:
            return {}
        new = _text(text, place) if self.names is None else _object(text, self.names, place)
        return {} if new == text else {self.name: new}


def _text(text: str, place: tuple[str, ...]) -> str:
    if _is_current(rows.object_of(text) if sealing.is_sealed(text) else None):
        return text
    opened = sealing.opened(text, *place)
    if sealing.is_sealed(opened):
        raise exceptions.NotTrusted(NO_KEYS)
    return sealing.sealed(opened, *place)


def _object(text: str, names: Callable[[rows.Row], Iterable[str]], place: tuple[str, ...]) -> str:
    data = rows.object_of(text)
    new = _parts(data, names(data), place)
    return text if new == data else rows.text_of(new)


def _parts(data: Mapping[str, Any], names: Iterable[str], place: tuple[str, ...]) -> rows.Row:
    if _is_current(data.get(sealed.SEALED)):
        return dict(data)
    return sealed.sealed_parts(sealed.opened_parts(data, *place), names, *place)


_CHANGES: Final[Mapping[sa.Table, Sequence[_Change]]] = {
    tables.BOOKS: [functools.partial(_record, rows.BOOK)],
    tables.FLOWS: [functools.partial(_record, rows.FLOW), _edits],
    tables.ATOMS: [functools.partial(_record, rows.ATOM)],
    tables.ITEMS: [functools.partial(_record, rows.ITEM)],
    tables.LOGS: [_Column("logged", sealed.place_of_log, ("atom_uuid", "attempt", "item"))],
    tables.SIGNALS: [_Column("value", sealed.place_of_signal, ("flow_uuid", "name"))],
    tables.BULKS: [_Column("arguments", sealed.place_of_arguments, ("uuid",), list)],
    tables.BULK_FLOWS: [
        _Column("arguments", sealed.place_of_arguments, ("bulk_uuid", "flow_uuid"), list)
    ],
    tables.JOBS: [_Column("details", sealed.place_of_details, ("uuid",), sealed.secret_details)],
    tables.SCHEDULES: [
        _Column("definition", sealed.place_of_inputs, ("name",), lambda _: ["inputs"]),
        _Column("trouble", sealed.place_of_trouble, ("name",)),
    ],
    tables.DUTIES: [_Column("note", sealed.place_of_note, ("name",), lambda _: ["outbox"])],
}
