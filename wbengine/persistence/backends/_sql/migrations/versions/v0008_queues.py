"""Add queues of flows and the order of their jobs."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends._sql import tables
from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add columns, indexes and tables. Earlier releases keep working without them."""
    for column in tables.queue_columns():
        migration_steps.add_column(tables.JOBS.name, column)
    for index in tables.JOB_INDEXES:
        columns = list(index.columns.keys())
        migration_steps.add_index(
            str(index.name), tables.JOBS.name, columns, **index.dialect_kwargs
        )
    for table in (tables.FAIR_KEYS, tables.JOB_QUEUES):
        table.create(op.get_bind(), checkfirst=True)
