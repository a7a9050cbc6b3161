"""Differences between databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

__all__ = [
    "BYTES", "IDLE_SECONDS", "KEY", "LOCK_TIMEOUT_SECONDS", "MAX_KEY_LENGTH", "MYSQL", "NUMBER",
    "POSTGRESQL", "SQLITE", "TABLE", "TEXT",
]  # fmt: skip
__all__ += ["by_primary_key", "exact_text", "now", "upsert"]

SQLITE: Final = "sqlite"
MYSQL: Final = "mysql"
POSTGRESQL: Final = "postgresql"

#: Time after which a server rolls back an idle transaction, so that a frozen process does not block
#: others.
IDLE_SECONDS: Final = 30
#: Maximum time that a transaction waits for a lock.
LOCK_TIMEOUT_SECONDS: Final = 45

#: In other collations of MySQL, "a" and "A" would be the same key.
_COLLATION: Final = "utf8mb4_bin"

MAX_KEY_LENGTH: Final = 255


def exact_text(length: int) -> sa.types.TypeEngine[str]:
    """Return the type of texts of a maximum length that all databases compare exactly."""
    exact = mysql.VARCHAR(length, collation=_COLLATION)
    return sa.String(length).with_variant(exact, MYSQL)


#: Type of identifiers.
KEY: Final = exact_text(MAX_KEY_LENGTH)

#: Type of texts of any length (MySQL limits a plain TEXT to 64 KB).
TEXT: Final = sa.Text().with_variant(mysql.LONGTEXT(collation=_COLLATION), MYSQL)

BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), MYSQL)

#: Type of primary keys that the database increments.
NUMBER: Final = sa.BigInteger().with_variant(sa.Integer(), SQLITE)

#: Arguments of each table.
TABLE: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": _COLLATION,
}

_NOW: Final = {
    SQLITE: "((julianday('now') - 2440587.5) * 86400.0)",
    MYSQL: "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)",
    POSTGRESQL: "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}


def now(dialect: str) -> str:
    """Return the SQL expression for the database's clock, in seconds as a double."""
    return _NOW[dialect]


def by_primary_key(dialect: str, table: str) -> str:
    """Return the name of a table in a statement that changes rows by lists of primary keys.

    MySQL would read small tables completely, and wait for rows that other transactions insert.
    """
    return f"{table} FORCE INDEX (PRIMARY)" if dialect == MYSQL else table


def upsert(
    dialect: str,
    table: str,
    columns: Iterable[str],
    keys: Sequence[str],
    *,
    keep: Iterable[str] = (),
    given: Mapping[str, str] | None = None,
    source: str | None = None,
) -> sa.TextClause:
    """Return an INSERT of rows (as dicts) that replaces rows with the same `keys`.

    Execute it with a list of rows, unless there is a `source`: drivers recognize this form and send
    many rows at once.

    :param keep: columns that keep their first value.
    :param given: SQL expressions for columns that are not in the rows.
    :param source: a SELECT that returns the rows, instead of VALUES.
    """
    names = list(columns)
    values = {**{name: f":{name}" for name in names}, **(given or {})}
    fixed = {*keys, *keep}
    changed = [name for name in names if name not in fixed]
    source = source or f"VALUES ({', '.join(values.values())})"
    text = f"INSERT INTO {table} ({', '.join(names)}) {source}"
    if dialect == MYSQL:
        assignments = ", ".join(f"{name} = VALUES({name})" for name in changed or keys)
        return sa.text(f"{text} ON DUPLICATE KEY UPDATE {assignments}")
    where = f" ON CONFLICT ({', '.join(keys)})"
    if not changed:
        return sa.text(f"{text}{where} DO NOTHING")
    assignments = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return sa.text(f"{text}{where} DO UPDATE SET {assignments}")
