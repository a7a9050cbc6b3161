"""The tables of the current layout; `migrations` tells how they came to be.

Every table has the identity of its rows and the plain fields of a record as columns, for people and
their queries; values of users are JSON texts by the typed codec.  What has no column of its own is
in `more`.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from wbengine._sql import dialects

__all__ = [
    "ATOMS", "BOOKS", "FLOWS", "ITEMS", "JOBS", "LIMITS", "LOGS", "METADATA", "OUTLINES",
    "SCHEDULES", "SIGNALS", "VERSION_TABLE", "select",
]  # fmt: skip

#: Where alembic keeps which revision the layout is of.
VERSION_TABLE: Final = "wbe_alembic_version"

METADATA: Final = sa.MetaData()


def select(table: sa.Table, *more: str) -> str:
    """The beginning of a SELECT of all columns of a table, by name: there may be more one day."""
    columns = [f"{table.name}.{column.name} AS {column.name}" for column in table.columns]
    return f"SELECT {', '.join([*columns, *more])} FROM {table.name}"


def _text(name: str, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, dialects.TEXT, nullable=nullable)


def _number() -> sa.Column[Any]:
    """In the order of the first insertion."""
    return sa.Column("id", dialects.NUMBER, primary_key=True, autoincrement=True)


def _key(name: str) -> sa.Column[Any]:
    return sa.Column(name, dialects.KEY, nullable=False)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _inside(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.uuid"], name=f"fk_{table}", ondelete="CASCADE"
    )


BOOKS: Final = sa.Table(
    "wbe_logbooks",
    METADATA,
    _number(),
    _key("uuid"),
    _text("name", nullable=False),
    _text("meta"),
    _text("created_at"),
    _text("updated_at"),
    _text("more"),
    sa.UniqueConstraint("uuid", name="uq_wbe_logbooks"),
    **dialects.TABLE,
)

FLOWS: Final = sa.Table(
    "wbe_flowdetails",
    METADATA,
    _number(),
    _key("uuid"),
    _key("book_uuid"),
    _text("name", nullable=False),
    _text("state"),
    _text("meta"),
    _text("more"),
    # Who runs the flow (NULL: nobody), and until when on the database's clock (unix seconds).
    _text("lease_owner"),
    _count("lease_epoch"),
    sa.Column("lease_until", sa.Double),
    # The command about the run of that lease.
    _text("wish"),
    # For lists (unix seconds): when its record was made, and when the row was written last.
    sa.Column("created", sa.Double, nullable=False, server_default="0"),
    sa.Column("updated", sa.Double),
    # Tells it from another flow of the same uuid, before or after.
    _count("birth"),
    sa.UniqueConstraint("uuid", name="uq_wbe_flowdetails"),
    _inside("wbe_flowdetails", "book_uuid", "wbe_logbooks"),
    sa.Index("ix_wbe_flowdetails_book", "book_uuid", "created", "id"),
    sa.Index("ix_wbe_flowdetails_created", "created", "id"),
    sa.Index("ix_wbe_flowdetails_state", "state", "created", "id", mysql_length={"state": 16}),
    **dialects.TABLE,
)

ATOMS: Final = sa.Table(
    "wbe_atomdetails",
    METADATA,
    _number(),
    _key("uuid"),
    _key("flow_uuid"),
    sa.Column("kind", sa.String(16), nullable=False),
    _text("name", nullable=False),
    _text("version"),
    _text("state"),
    _text("intention"),
    sa.Column("attempt", sa.BigInteger),
    sa.Column("epoch", sa.BigInteger),
    _text("meta"),
    _text("results"),
    _text("failure"),
    _text("revert_results"),
    _text("revert_failure"),
    _text("more"),
    # In which of the flow's turns it, or one of its items, was written last.
    _count("changed"),
    sa.UniqueConstraint("uuid", name="uq_wbe_atomdetails"),
    _inside("wbe_atomdetails", "flow_uuid", "wbe_flowdetails"),
    sa.Index("ix_wbe_atomdetails", "flow_uuid"),
    sa.Index("ix_wbe_atomdetails_changed", "flow_uuid", "changed"),
    **dialects.TABLE,
)

ITEMS: Final = sa.Table(
    "wbe_itemdetails",
    METADATA,
    _key("atom_uuid"),
    sa.Column("attempt", sa.BigInteger, nullable=False, autoincrement=False),
    sa.Column("item", sa.BigInteger, nullable=False, autoincrement=False),
    _text("state"),
    _text("value"),
    _text("results"),
    _text("failure"),
    _text("more"),
    _count("changed"),
    sa.PrimaryKeyConstraint("atom_uuid", "attempt", "item", name="pk_wbe_itemdetails"),
    _inside("wbe_itemdetails", "atom_uuid", "wbe_atomdetails"),
    **dialects.TABLE,
)

#: What tasks logged, in the order in which it was written.
LOGS: Final = sa.Table(
    "wbe_logs",
    METADATA,
    _number(),
    _key("atom_uuid"),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    # Of a Map; -1: of the atom itself.
    sa.Column("item", sa.BigInteger, nullable=False),
    # JSON: [[unix seconds, level, logger, text], ...]
    _text("logged", nullable=False),
    _inside("wbe_logs", "atom_uuid", "wbe_atomdetails"),
    sa.Index("ix_wbe_logs", "atom_uuid", "attempt"),
    **dialects.TABLE,
)

OUTLINES: Final = sa.Table(
    "wbe_outlines",
    METADATA,
    _key("flow_uuid"),
    sa.Column("outline", dialects.BYTES, nullable=False),
    sa.PrimaryKeyConstraint("flow_uuid", name="pk_wbe_outlines"),
    _inside("wbe_outlines", "flow_uuid", "wbe_flowdetails"),
    **dialects.TABLE,
)

#: What was signalled to flows: of each name the first.
SIGNALS: Final = sa.Table(
    "wbe_signals",
    METADATA,
    _key("flow_uuid"),
    _key("name"),
    # Typed JSON.
    _text("value", nullable=False),
    # When it was given, on the clock of whoever did (unix seconds).
    sa.Column("at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("flow_uuid", "name", name="pk_wbe_signals"),
    _inside("wbe_signals", "flow_uuid", "wbe_flowdetails"),
    **dialects.TABLE,
)

#: Limits that are in use now (`wbengine.permits`).
LIMITS: Final = sa.Table(
    "wbe_limits",
    METADATA,
    _key("name"),
    # Who has how many permits, and who waits, as JSON.
    _text("account", nullable=False),
    # When nothing of it is needed any more, by the database's clock.
    sa.Column("expires", sa.Double, nullable=False, server_default="0"),
    sa.PrimaryKeyConstraint("name", name="pk_wbe_limits"),
    **dialects.TABLE,
)

#: What the boards of `wbengine.jobs` post; here, so that a flow and its job are one transaction.
JOBS: Final = sa.Table(
    "wbe_jobs",
    METADATA,
    _number(),
    _key("uuid"),
    # Which board, of those in this database.
    _key("board"),
    _text("name", nullable=False),
    # 0 (VERY_HIGH) to 4 (VERY_LOW): in the order of the index.
    sa.Column("priority", sa.SmallInteger, nullable=False),
    _text("details"),
    _text("book_uuid"),
    _text("book_name"),
    # Who has claimed it (NULL: nobody), until when on the database's clock (NULL: without end), and
    # how often it was claimed.
    _text("owner"),
    sa.Column("owner_until", sa.Double),
    _count("claims"),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    # 1: put aside as broken.
    sa.Column("trashed", sa.SmallInteger, nullable=False, server_default="0"),
    # Until when on the database's clock it is not to be claimed; 0: its time has come.
    sa.Column("not_before", sa.Double, nullable=False, server_default="0"),
    sa.UniqueConstraint("uuid", name="uq_wbe_jobs"),
    # For a list of all; and for the look for work, which is to find no other index as good.
    sa.Index("ix_wbe_jobs_priority", "priority", "id"),
    sa.Index("ix_wbe_jobs_ready", "board", "trashed", "not_before", "priority", "id"),
    **dialects.TABLE,
)

#: What `wbengine.schedules` keeps; here, so that a firing is one transaction.
SCHEDULES: Final = sa.Table(
    "wbe_schedules",
    METADATA,
    _number(),
    _key("name"),
    # What it says, as JSON.
    _text("definition", nullable=False),
    # Changes with the definition, and with each pause: who read the one before fires nothing.
    _count("revision"),
    sa.Column("paused", sa.SmallInteger, nullable=False, server_default="0"),
    # The tick to fire next, and when that is due (unix seconds): jitter makes it later.
    sa.Column("next_tick", sa.BigInteger, nullable=False),
    sa.Column("due", sa.Double, nullable=False),
    # Of the latest firing.
    sa.Column("last_tick", sa.BigInteger),
    _text("last_flow"),
    # The uuid of a flow that is to be fired now, besides the ticks (NULL: none).
    _text("wanted"),
    # Why the latest try to fire it failed.
    _text("trouble"),
    sa.UniqueConstraint("name", name="uq_wbe_schedules"),
    sa.Index("ix_wbe_schedules_due", "paused", "due"),
    **dialects.TABLE,
)
