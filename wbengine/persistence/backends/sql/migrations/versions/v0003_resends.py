"""Add the time of the first resend to flows."""

from __future__ import annotations

import sqlalchemy as sa

from wbengine.persistence.backends.sql.migrations import steps

revision = "0003"
down_revision = "0002"

_FLOWS = "wbe_flowdetails"


def upgrade() -> None:
    """Add the column and its index. Earlier releases keep working: they write no resends."""
    steps.add_column(_FLOWS, sa.Column("resent_at", sa.Double))
    stored = sa.text("resent_at IS NOT NULL")
    steps.add_index(
        "ix_wbe_flowdetails_resent",
        _FLOWS,
        ["resent_at", "created", "id"],
        sqlite_where=stored,
        postgresql_where=stored,
    )
