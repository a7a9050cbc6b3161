"""The tables of the current layout. `migrations` converts older layouts.

Every table has columns for the identity of its rows and for the fields that queries use. Values of
users are JSON texts of the typed codec. Fields without a column are in `more`.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from wbengine._sql import dialects

__all__ = [
    "ACCESS_KEYS", "ATOMS", "BOOKS", "BULKS", "BULK_FLOWS", "CODES", "DUTIES", "ENDED_INDEX",
    "FAIR_KEYS", "FLOWS", "JOB_QUEUES", "ITEMS", "JOBS", "JOB_INDEXES", "LIMITED_NOT_BEFORE",
    "LIMITS", "LIMIT_CHANGES", "LOGS", "METADATA", "OUTLINES", "PAUSES", "SCHEDULES", "SIGNALS",
    "SPARSE_INDEXES", "TAGS", "UNIQUE_KEYS", "VERSION_TABLE", "queue_columns", "select",
]  # fmt: skip

#: Alembic's table with the revision of the layout.
VERSION_TABLE: Final = "wbe_alembic_version"

METADATA: Final = sa.MetaData()


def select(table: sa.Table, *more: str) -> str:
    """Return the start of a SELECT with an explicit column list: later layouts may add columns."""
    columns = [f"{table.name}.{column.name} AS {column.name}" for column in table.columns]
    return f"SELECT {', '.join([*columns, *more])} FROM {table.name}"


def _text(name: str, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, dialects.TEXT, nullable=nullable)


def _number() -> sa.Column[Any]:
    """Return a column that numbers rows in the order of their first insertion."""
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
    # Code that executed the latest task or step (NULL: none with a version).
    sa.Column("code", dialects.KEY),
    # Owner of the lease (NULL: none), and its expiry in Unix seconds on the database's clock.
    _text("lease_owner"),
    _count("lease_epoch"),
    sa.Column("lease_until", sa.Double),
    # The command that no engine has carried out yet (NULL: none).
    _text("wish"),
    # In Unix seconds: creation of the record and latest write of the row.
    sa.Column("created", sa.Double, nullable=False, server_default="0"),
    sa.Column("updated", sa.Double),
    # Time at which the flow entered its final state, in Unix seconds (NULL: not ended); or the time
    # until which a flow in SUCCESS can be undone, if it has such a limit.
    sa.Column("ended", sa.Double),
    # First resend of a task in Unix seconds (NULL: none).
    sa.Column("resent_at", sa.Double),
    # Random number: it distinguishes this flow from a deleted or later flow with the same uuid, and
    # is the secret of its cursors.
    _count("birth"),
    sa.UniqueConstraint("uuid", name="uq_wbe_flowdetails"),
    _inside("wbe_flowdetails", "book_uuid", "wbe_logbooks"),
    sa.Index("ix_wbe_flowdetails_book", "book_uuid", "created", "id"),
    sa.Index("ix_wbe_flowdetails_created", "created", "id"),
    sa.Index("ix_wbe_flowdetails_state", "state", "created", "id", mysql_length={"state": 16}),
    **dialects.TABLE,
)


def _sparse_index(column: str, *columns: str, **options: Any) -> sa.Index:
    """Return an index of the flows with a value. MySQL has no partial indexes."""
    stored = sa.text(f"{column} IS NOT NULL")
    return sa.Index(
        f"ix_wbe_flowdetails_{column}",
        *(FLOWS.c[name] for name in columns),
        sqlite_where=stored,
        postgresql_where=stored,
        **options,
    )


SPARSE_INDEXES: Final = (
    _sparse_index("resent_at", "resent_at", "created", "id"),
    _sparse_index("wish", "wish", "created", "id", mysql_length={"wish": 1}),
)
#: Ended flows by state and time of their end.
ENDED_INDEX: Final = _sparse_index("ended", "state", "ended", mysql_length={"state": 16})

#: Index of the tags in `meta` of flows (`wbengine.types._tags`).
TAGS: Final = sa.Table(
    "wbe_tags",
    METADATA,
    sa.Column("flow_id", dialects.NUMBER, nullable=False, autoincrement=False),
    _key("name"),
    # 'text', 'number', 'time' or 'boolean'.
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("text", dialects.exact_text(256), nullable=False),
    # The number, or the time in Unix seconds (NULL: another kind).
    sa.Column("number", sa.Double),
    # 1: a tag of the submission.
    sa.Column("given", sa.SmallInteger, nullable=False),
    # Of the flow: an index in the order of lists.
    sa.Column("created", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("flow_id", "name", name="pk_wbe_tags"),
    sa.ForeignKeyConstraint(
        ["flow_id"], ["wbe_flowdetails.id"], name="fk_wbe_tags", ondelete="CASCADE"
    ),
    sa.Index("ix_wbe_tags_text", "name", "text", "created", "flow_id"),
    sa.Index("ix_wbe_tags_number", "name", "kind", "number", "created", "flow_id"),
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
    # Number of the flow's batch that last wrote the atom or one of its items.
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

LOGS: Final = sa.Table(
    "wbe_logs",
    METADATA,
    _number(),
    _key("atom_uuid"),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    # Index of the item of a Map; -1: the atom itself.
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

#: `name` is `Signal.stored_name`. The first signal of each stored name is kept.
SIGNALS: Final = sa.Table(
    "wbe_signals",
    METADATA,
    _key("flow_uuid"),
    _key("name"),
    # Typed JSON.
    _text("value", nullable=False),
    # Time of sending in Unix seconds, on the sender's clock.
    sa.Column("at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("flow_uuid", "name", name="pk_wbe_signals"),
    _inside("wbe_signals", "flow_uuid", "wbe_flowdetails"),
    **dialects.TABLE,
)

#: Limits in use (`wbengine._limits`).
LIMITS: Final = sa.Table(
    "wbe_limits",
    METADATA,
    _key("name"),
    # Owners of permits and waiting engines, as JSON.
    _text("account", nullable=False),
    # Time on the database's clock after which the row is deleted.
    sa.Column("expires", sa.Double, nullable=False, server_default="0"),
    sa.PrimaryKeyConstraint("name", name="pk_wbe_limits"),
    **dialects.TABLE,
)

#: Changes of limits by operators (`wbengine._limits.limit_changes`).
LIMIT_CHANGES: Final = sa.Table(
    "wbe_limit_changes",
    METADATA,
    _key("name"),
    # NULL: unchanged.
    _text("rate"),
    sa.Column("concurrency", sa.BigInteger),
    _text("reason"),
    _text("sender"),
    # Unix seconds.
    sa.Column("changed_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("name", name="pk_wbe_limit_changes"),
    **dialects.TABLE,
)

#: Pauses of task types (`persistence._pauses`). Times are Unix seconds.
PAUSES: Final = sa.Table(
    "wbe_pauses",
    METADATA,
    _key("pattern"),
    _text("reason"),
    _text("sender"),
    sa.Column("paused_at", sa.Double, nullable=False),
    sa.Column("ends_at", sa.Double),
    sa.PrimaryKeyConstraint("pattern", name="pk_wbe_pauses"),
    **dialects.TABLE,
)

#: Keys of the dashboard's API (`persistence._access_keys`). Times are Unix seconds.
ACCESS_KEYS: Final = sa.Table(
    "wbe_access_keys",
    METADATA,
    _key("key_id"),
    # SHA-256 of the key.
    _key("digest"),
    _key("name"),
    _key("role"),
    # JSON object.
    _text("tags", nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    _text("creator"),
    # End of the validity (NULL: none), latest use and revocation.
    sa.Column("expires", sa.Double),
    sa.Column("used", sa.Double),
    sa.Column("revoked", sa.Double),
    _text("mac"),
    sa.PrimaryKeyConstraint("key_id", name="pk_wbe_access_keys"),
    **dialects.TABLE,
)

#: Versions of the code of conductors (`persistence._codes`). `id` is their order.
CODES: Final = sa.Table(
    "wbe_codes",
    METADATA,
    _number(),
    _key("app"),
    _key("version"),
    # Time of the latest report of a conductor, in Unix seconds on the database's clock.
    sa.Column("seen", sa.Double, nullable=False, server_default="0"),
    sa.UniqueConstraint("app", "version", name="uq_wbe_codes"),
    **dialects.TABLE,
)

#: Unique keys of submissions (`unique_keys.UniqueKey`) with their flows.
UNIQUE_KEYS: Final = sa.Table(
    "wbe_unique_keys",
    METADATA,
    _number(),
    _key("name"),
    _key("flow_uuid"),
    _key("digest"),
    # In Unix seconds on the database's clock (NULL: the key ends with the run of its flow).
    sa.Column("expires", sa.Double),
    sa.UniqueConstraint("name", name="uq_wbe_unique_keys"),
    sa.Index("ix_wbe_unique_keys_expires", "expires"),
    **dialects.TABLE,
)

#: Work that one process at a time does for all (`Connection.claim_duty`).
DUTIES: Final = sa.Table(
    "wbe_duties",
    METADATA,
    _key("name"),
    # Owner (NULL: none), and the time on the database's clock until which no other process begins.
    _text("owner"),
    sa.Column("until", sa.Double, nullable=False, server_default="0"),
    # JSON object about the latest end of the work.
    _text("note"),
    sa.PrimaryKeyConstraint("name", name="pk_wbe_duties"),
    **dialects.TABLE,
)

#: Operations on many flows (`persistence._bulk_records.Bulk`). Times are Unix seconds.
BULKS: Final = sa.Table(
    "wbe_bulks",
    METADATA,
    _number(),
    _key("uuid"),
    _text("operation", nullable=False),
    # JSON objects.
    _text("arguments"),
    _text("filter"),
    _text("reason"),
    _text("sender"),
    sa.Column("rate", sa.Double),
    _text("state", nullable=False),
    # Numbers of flows. The first `done + skipped` flows in the order of their position are settled.
    _count("total"),
    _count("done"),
    _count("skipped"),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    # Owner of the claim (NULL: none), and its expiry on the database's clock.
    _text("owner"),
    sa.Column("owner_until", sa.Double),
    sa.UniqueConstraint("uuid", name="uq_wbe_bulks"),
    **dialects.TABLE,
)

#: The flows of operations on many flows.
BULK_FLOWS: Final = sa.Table(
    "wbe_bulk_flows",
    METADATA,
    _key("bulk_uuid"),
    sa.Column("position", sa.BigInteger, nullable=False, autoincrement=False),
    _key("flow_uuid"),
    # Stored state of the flow when the operation was confirmed.
    _text("state", nullable=False),
    # JSON object of arguments for this flow only (NULL: none).
    _text("arguments"),
    # Why the flow was skipped (NULL: it was not).
    _text("reason"),
    sa.PrimaryKeyConstraint("bulk_uuid", "position", name="pk_wbe_bulk_flows"),
    **dialects.TABLE,
)

#: `not_before` of jobs that wait for a permit of `flow_limit`.
LIMITED_NOT_BEFORE: Final = 5e11


def queue_columns() -> tuple[sa.Column[Any], ...]:
    """Return the columns of a job that determine when a conductor takes it (`turns`)."""
    return (
        sa.Column("queue", dialects.exact_text(64), nullable=False, server_default="default"),
        sa.Column("fair_key", dialects.KEY, nullable=False, server_default=sa.text("''")),
        sa.Column("fair_weight", sa.Double, nullable=False, server_default="1"),
        # Place in the order of the queue; -1: before all others; NULL: none, because it waits.
        sa.Column("turn", sa.Double, server_default="0"),
        # Name of the limit for which the flow waits (NULL: none).
        sa.Column("flow_limit", dialects.KEY),
    )


#: In the same database as the flows, so that one transaction writes a flow and its job.
JOBS: Final = sa.Table(
    "wbe_jobs",
    METADATA,
    _number(),
    _key("uuid"),
    _key("board"),
    _text("name", nullable=False),
    # 0 (VERY_HIGH) to 4 (VERY_LOW): the order of the index.
    sa.Column("priority", sa.SmallInteger, nullable=False),
    _text("details"),
    _text("book_uuid"),
    _text("book_name"),
    # Owner of the claim (NULL: none), its expiry on the database's clock (NULL: never), and number
    # of claims.
    _text("owner"),
    sa.Column("owner_until", sa.Double),
    _count("claims"),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    # 1: in the trash.
    sa.Column("trashed", sa.SmallInteger, nullable=False, server_default="0"),
    # Earliest time of a claim on the database's clock; 0: now.
    sa.Column("not_before", sa.Double, nullable=False, server_default="0"),
    *queue_columns(),
    # Seconds from the end of a child flow until its parked parent is due.
    sa.Column("end_delay", sa.Double, nullable=False, server_default="0"),
    sa.UniqueConstraint("uuid", name="uq_wbe_jobs"),
    # Index for lists of all jobs, and index for claims. The claim query must not use the first.
    sa.Index("ix_wbe_jobs_priority", "priority", "id"),
    sa.Index("ix_wbe_jobs_ready", "board", "trashed", "not_before", "priority", "id"),
    **dialects.TABLE,
)


def _job_index(name: str, *columns: str, only: str) -> sa.Index:
    """Return an index of some jobs. MySQL has no partial indexes."""
    return sa.Index(
        f"ix_wbe_jobs_{name}",
        *(JOBS.c[column] for column in columns),
        sqlite_where=sa.text(only),
        postgresql_where=sa.text(only),
    )


_READY: Final = "trashed = 0 AND owner IS NULL AND not_before = 0"
JOB_INDEXES: Final = (
    _job_index("turn", "board", "queue", "turn", "id", only=_READY),
    _job_index("first", "board", "queue", "fair_key", "priority", "id", only=_READY),
    _job_index("key", "board", "queue", "fair_key", "turn", only="owner IS NULL"),
    _job_index("limit", "board", "flow_limit", "priority", "id", only="flow_limit IS NOT NULL"),
    _job_index("claims", "board", "owner_until", only="owner_until IS NOT NULL"),
)

#: Keys of jobs that no conductor has to take now, with their last turn.
FAIR_KEYS: Final = sa.Table(
    "wbe_fair_keys",
    METADATA,
    _key("board"),
    sa.Column("queue", dialects.exact_text(64), nullable=False),
    _key("fair_key"),
    # The first turn that the key can get next.
    sa.Column("served", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("board", "queue", "fair_key", name="pk_wbe_fair_keys"),
    sa.Index("ix_wbe_fair_keys_served", "board", "queue", "served"),
    **dialects.TABLE,
)

#: Queues of flows that conductors serve or that are paused; '*' stands for all queues.
JOB_QUEUES: Final = sa.Table(
    "wbe_job_queues",
    METADATA,
    _key("board"),
    sa.Column("name", dialects.exact_text(64), nullable=False),
    # Latest report of a conductor that serves it, in Unix seconds on the database's clock.
    sa.Column("seen", sa.Double, nullable=False, server_default="0"),
    # Start of the pause in Unix seconds (NULL: not paused).
    sa.Column("paused_at", sa.Double),
    _text("reason"),
    _text("sender"),
    sa.PrimaryKeyConstraint("board", "name", name="pk_wbe_job_queues"),
    **dialects.TABLE,
)

#: In the same database as the flows, so that a firing is one transaction.
SCHEDULES: Final = sa.Table(
    "wbe_schedules",
    METADATA,
    _number(),
    _key("name"),
    _text("definition", nullable=False),
    # Changes with the definition and each pause. A process that read an old revision cannot fire.
    _count("revision"),
    sa.Column("paused", sa.SmallInteger, nullable=False, server_default="0"),
    # JSON list of the start and end of pauses, in Unix seconds: see `schedules.Entry`.
    _text("pauses"),
    # The next planned tick, and its due time including jitter, in Unix seconds.
    sa.Column("next_tick", sa.BigInteger, nullable=False),
    sa.Column("due", sa.Double, nullable=False),
    # The latest firing.
    sa.Column("last_tick", sa.BigInteger),
    _text("last_flow"),
    # Uuid of a flow to fire now, in addition to the ticks (NULL: none).
    _text("wanted"),
    # Error of the latest firing (NULL: none).
    _text("trouble"),
    sa.UniqueConstraint("name", name="uq_wbe_schedules"),
    sa.Index("ix_wbe_schedules_due", "paused", "due"),
    **dialects.TABLE,
)
