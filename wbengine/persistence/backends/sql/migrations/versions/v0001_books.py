"""Log books, flows and atoms."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from wbengine._sql import dialects
from wbengine.persistence.backends.sql.migrations import steps

revision = "0001"
down_revision = None


def _number() -> sa.Column[Any]:
    return sa.Column("id", dialects.NUMBER, primary_key=True, autoincrement=True)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, dialects.TEXT) for name in names]


def _required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _inside(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.uuid"], name=f"fk_{table}", ondelete="CASCADE"
    )


def upgrade() -> None:
    steps.create_table(
        "wbe_logbooks",
        _number(),
        _required("uuid", dialects.KEY),
        _required("name", dialects.TEXT),
        *_texts("meta", "created_at", "updated_at", "more"),
        sa.UniqueConstraint("uuid", name="uq_wbe_logbooks"),
    )
    steps.create_table(
        "wbe_flowdetails",
        _number(),
        _required("uuid", dialects.KEY),
        _required("book_uuid", dialects.KEY),
        _required("name", dialects.TEXT),
        *_texts("state", "meta", "more"),
        sa.UniqueConstraint("uuid", name="uq_wbe_flowdetails"),
        _inside("wbe_flowdetails", "book_uuid", "wbe_logbooks"),
        sa.Index("ix_wbe_flowdetails", "book_uuid"),
    )
    steps.create_table(
        "wbe_atomdetails",
        _number(),
        _required("uuid", dialects.KEY),
        _required("flow_uuid", dialects.KEY),
        _required("kind", sa.String(16)),
        _required("name", dialects.TEXT),
        *_texts("version", "state", "intention"),
        sa.Column("attempt", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger),
        *_texts("meta", "results", "failure", "revert_results", "revert_failure", "more"),
        sa.UniqueConstraint("uuid", name="uq_wbe_atomdetails"),
        _inside("wbe_atomdetails", "flow_uuid", "wbe_flowdetails"),
        sa.Index("ix_wbe_atomdetails", "flow_uuid"),
    )
