"""Tables of requests to workers: their rows, the heartbeats of holders, and the identity.

The ledger in a database (`sql_ledger`) uses them, and the transport through the same database,
which claims and finishes rows together with messages.
"""

from __future__ import annotations

import uuid
from typing import Final

import sqlalchemy as sa

from wbengine._sql import dialects
from wbengine._text import data_formats

__all__ = ["create", "exist"]

_CREATION_LOCK: Final = 7_760_269_180_342

_metadata: Final = sa.MetaData()
sa.Table(
    "wbe_ledger",
    _metadata,
    sa.Column("id", dialects.KEY, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("state", sa.SmallInteger, nullable=False),
    sa.Column("holder", dialects.KEY),
    sa.Column("result", dialects.BYTES),
    sa.Column("changed", sa.Double, nullable=False),
    **dialects.TABLE,
)
sa.Table(
    "wbe_ledger_holders",
    _metadata,
    sa.Column("holder", dialects.KEY, primary_key=True),
    sa.Column("beat", sa.Double, nullable=False),
    **dialects.TABLE,
)
# This table is created last: if it has a row, the other tables exist.
sa.Table(
    "wbe_ledger_about",
    _metadata,
    # The key is always 1: of several releases that create the tables, only one inserts the row.
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("digest", dialects.KEY, nullable=False),
    sa.Column("swept", sa.Double, nullable=False),
    **dialects.TABLE,
)
_TABLES: Final = ("wbe_ledger", "wbe_ledger_holders", "wbe_ledger_about")


def exist(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table(_TABLES[-1])


def create(connection: sa.Connection) -> None:
    """Create the tables and the identity, unless they exist."""
    dialect = connection.dialect.name
    # In PostgreSQL, one of two concurrent creations of a table fails.
    if dialect == dialects.POSTGRESQL:
        connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))
    for name in _TABLES:
        connection.execute(sa.schema.CreateTable(_metadata.tables[name], if_not_exists=True))
    insert = dialects.upsert(
        dialect,
        "wbe_ledger_about",
        ("id", "format", "digest", "swept"),
        ["id"],
        keep=("format", "digest", "swept"),
        given={
            "id": "1",
            "format": str(data_formats.LEDGER.written),
            "swept": dialects.now(dialect),
        },
    )
    connection.execute(insert, {"digest": f"sql-{uuid.uuid4().hex}"})
