"""One transaction in MySQL or MariaDB, in which a statement of the transport executes SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pymysql

__all__ = ["Transaction"]

#: Maximum size of an INSERT of several rows. A larger row is inserted alone.
_MAX_INSERT_BYTES: Final = 1024 * 1024


class Transaction:
    """A transaction. Its owner ends it.

    :ivar routes: the version of the routing that a statement has read; None: not yet.
    """

    def __init__(self, driver: Any) -> None:
        self._cursor = driver.cursor()
        self.routes: int | None = None

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        self._cursor.execute(statement, values)
        return list(self._cursor.fetchall())

    def count(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        """Execute a statement. Return the number of matching rows."""
        return int(self._cursor.execute(statement, values))

    def insert_new(self, statement: str, values: Mapping[str, Any]) -> bool:
        """Insert a row unless it exists. Return whether it is new."""
        try:
            self._cursor.execute(statement, values)
        except pymysql.IntegrityError:
            return False
        return True

    def insert(
        self, start: str, row: str, rows: Sequence[Mapping[str, Any]], end: str = ""
    ) -> None:
        """Insert rows in their order, with as many statements as their sizes require.

        :param start: the statement before its rows, and `row` is one of them.
        """
        for texts in _batches([self._cursor.mogrify(row, values) for values in rows]):
            self._cursor.execute(f"{start} {', '.join(texts)} {end}")


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _MAX_INSERT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch
