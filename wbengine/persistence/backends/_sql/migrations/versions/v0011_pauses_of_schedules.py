"""Add the pauses of schedules, so that times that were due before a pause are due after it."""

from __future__ import annotations

import sqlalchemy as sa

from wbengine._sql import dialects
from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column. Earlier releases keep working without it: they leave these times out."""
    migration_steps.add_column("wbe_schedules", sa.Column("pauses", dialects.TEXT))
