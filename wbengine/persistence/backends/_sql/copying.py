"""Copies of rows that belong to no flow, such as schedules, jobs, unique keys and pauses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _sql
from wbengine.persistence.backends._sql import paging, reencrypting, tables
from wbengine.persistence.backends._sql.backend import SQLBackend

__all__ = ["copy_rows"]

_ROWS_PER_TRANSACTION: Final = 500

#: Tables of what runs now, which a copy does not contain.
_PRESENT: Final = frozenset({tables.DUTIES, tables.LIMITS})
#: Columns of a row of a process that runs now.
_OF_OWNER: Final = frozenset({"owner", "owner_until"})


def copy_rows(source: SQLBackend, target: SQLBackend) -> None:
    """Copy the rows that `target` does not have. Rows of jobs are copied without their owners.

    If this process has keys, the copies are encrypted with the current one.

    :raises NotTrusted: if the keys do not contain the key of a row.
    :raises StorageFailure: if a store is unavailable.
    """
    for table in tables.METADATA.sorted_tables:
        if table not in _PRESENT and table is not tables.BOOKS and not table.foreign_keys:
            for rows in _batches(source, table):
                _insert(target, table, rows)


def _batches(source: SQLBackend, table: sa.Table) -> Iterator[list[dict[str, Any]]]:
    columns = [each for each in table.columns if each.name != "id"]
    after: Mapping[str, Any] | None = None

    while True:
        dialect = source.options.dialect
        statement = paging.next_rows(table, after, _ROWS_PER_TRANSACTION, dialect)

        def read(connection: sa.Connection, statement: sa.Select[Any] = statement) -> Any:
            return connection.execute(statement).mappings().all()

        found = _sql.transact(source.engine, f"Reading {table.name}", read, write=False)
        if not found:
            return
        yield [
            {each.name: None if each.name in _OF_OWNER else row[each.name] for each in columns}
            for row in found
        ]
        after = found[-1]


def _insert(target: SQLBackend, table: sa.Table, rows: Iterable[dict[str, Any]]) -> None:
    identity = paging.identity(table)

    def work(connection: sa.Connection) -> None:
        for stored in rows:
            row = reencrypting.with_current_key(table, stored)
            same = [each == row[each.name] for each in identity]
            if connection.execute(sa.select(identity[0]).where(*same)).first() is None:
                connection.execute(sa.insert(table).values(row))

    target.prepare()
    _sql.transact(target.engine, f"Copying {table.name}", work)
