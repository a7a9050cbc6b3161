"""Add the delay after which the end of a child flow makes the job of its parent due."""

from __future__ import annotations

from wbengine.persistence.backends._sql import tables
from wbengine.persistence.backends._sql.migrations import steps

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column. Earlier releases keep working without it: parents are due at once."""
    steps.add_column(tables.JOBS.name, tables.end_delay_column())
