"""Which atoms changed in which turn, what lists tell of flows, wishes, and outlines."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from wbengine._sql import dialects
from wbengine.persistence.backends.sql.migrations import steps

revision = "0003"
down_revision = "0002"

_BOOKS: Final = sa.text("SELECT uuid, created_at FROM wbe_logbooks WHERE created_at IS NOT NULL")
_CREATED: Final = sa.text(
    "UPDATE wbe_flowdetails SET created = :created WHERE book_uuid = :book AND created = 0"
)

#: Whoever runs one now does not hear of wishes, and numbers no turns.
_AT_REST: Final = sa.text(
    "UPDATE wbe_flowdetails SET wish_epoch = lease_epoch"
    " WHERE wish_epoch IS NULL AND lease_owner IS NULL"
)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def upgrade() -> None:
    for column in (
        sa.Column("wish", dialects.TEXT),
        sa.Column("wish_epoch", sa.BigInteger),
        sa.Column("created", sa.Double, nullable=False, server_default="0"),
        sa.Column("updated", sa.Double),
        _count("birth"),
    ):
        steps.add_column("wbe_flowdetails", column)
    steps.add_index("ix_wbe_flowdetails_created", "wbe_flowdetails", ["created", "id"])
    steps.add_column("wbe_atomdetails", _count("changed"))
    steps.add_index("ix_wbe_atomdetails_changed", "wbe_atomdetails", ["flow_uuid", "changed"])
    steps.add_column("wbe_itemdetails", _count("changed"))
    steps.create_table(
        "wbe_outlines",
        sa.Column("flow_uuid", dialects.KEY, nullable=False),
        sa.Column("outline", dialects.BYTES, nullable=False),
        sa.PrimaryKeyConstraint("flow_uuid", name="pk_wbe_outlines"),
        sa.ForeignKeyConstraint(
            ["flow_uuid"], ["wbe_flowdetails.uuid"], name="fk_wbe_outlines", ondelete="CASCADE"
        ),
    )
    _tell_when_flows_were_created()
    op.get_bind().execute(_AT_REST)


def _tell_when_flows_were_created() -> None:
    """Nobody knows better than their books."""
    bind = op.get_bind()
    for book, text in bind.execute(_BOOKS).all():
        try:
            created = datetime.fromisoformat(text).timestamp()
        except ValueError:
            continue
        bind.execute(_CREATED, {"book": book, "created": created})
