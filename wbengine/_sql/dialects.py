"""What each kind of database has its own words for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

__all__ = ["BYTES", "KEY", "MAX_KEY", "MYSQL", "NUMBER", "POSTGRESQL", "SQLITE", "TABLE", "TEXT"]
__all__ += ["now", "upsert"]

SQLITE: Final = "sqlite"
MYSQL: Final = "mysql"
POSTGRESQL: Final = "postgresql"

#: Of MySQL: without it "a" and "A" would be one key.
_COLLATION: Final = "utf8mb4_bin"

#: So long a key may be.
MAX_KEY: Final = 255

#: Identifiers: exact, whatever the database's habits.
KEY: Final = sa.String(MAX_KEY).with_variant(mysql.VARCHAR(MAX_KEY, collation=_COLLATION), MYSQL)

#: Texts of any length (on MySQL a plain TEXT ends at 64 KB).
TEXT: Final = sa.Text().with_variant(mysql.LONGTEXT(collation=_COLLATION), MYSQL)

#: Bytes of any length.
BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), MYSQL)

#: Numbers that the database counts up itself as a primary key.
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
    """The SQL of the database's own clock: seconds, as a double."""
    return _NOW[dialect]


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
    """An INSERT of rows (as dicts) that replaces those with the same `keys`.

    The columns `keep` are those of the first insertion.  Columns that are `given` by an SQL
    expression are not in the rows.  `source`: a SELECT that gives the rows, instead of VALUES.
    Without it, to be executed with a list of rows: each driver has its own way to send many at
    once, and knows this form of the statement.
    """
    names = list(columns)
    values = {**{name: f":{name}" for name in names}, **(given or {})}
    fixed = {*keys, *keep}
    changed = [name for name in names if name not in fixed]
    source = source or f"VALUES ({', '.join(values.values())})"
    text = f"INSERT INTO {table} ({', '.join(names)}) {source}"
    if dialect == MYSQL:
        news = ", ".join(f"{name} = VALUES({name})" for name in changed or keys)
        return sa.text(f"{text} ON DUPLICATE KEY UPDATE {news}")
    where = f" ON CONFLICT ({', '.join(keys)})"
    if not changed:
        return sa.text(f"{text}{where} DO NOTHING")
    news = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return sa.text(f"{text}{where} DO UPDATE SET {news}")
