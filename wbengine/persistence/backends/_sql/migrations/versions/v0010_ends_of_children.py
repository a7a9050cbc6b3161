"""Add the delay after which the end of a child flow makes the job of its parent due."""

from __future__ import annotations

import sqlalchemy as sa

from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column. Earlier releases keep working without it: parents are due at once."""
    column = sa.Column("end_delay", sa.Double, nullable=False, server_default="0")
    migration_steps.add_column("wbe_jobs", column)
