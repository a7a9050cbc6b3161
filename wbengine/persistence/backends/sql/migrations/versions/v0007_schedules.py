"""Add a table of schedules, and an index of jobs that wait for a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wbengine.persistence.backends.sql import tables
from wbengine.persistence.backends.sql.migrations import steps

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    bind = op.get_bind()
    # A database upgraded from 0004 already has the current table of jobs.
    column = sa.Column("not_before", sa.Double, nullable=False, server_default="0")
    steps.add_column("wbe_jobs", column)
    bind.exec_driver_sql(
        "UPDATE wbe_jobs SET not_before = owner_until, owner = NULL, owner_until = NULL"
        " WHERE owner = ''"
    )
    columns = ["board", "trashed", "not_before", "priority", "id"]
    steps.add_index("ix_wbe_jobs_ready", "wbe_jobs", columns)
    steps.add_index("ix_wbe_jobs_priority", "wbe_jobs", ["priority", "id"])
    steps.drop_index("ix_wbe_jobs", "wbe_jobs")
    tables.SCHEDULES.create(bind, checkfirst=True)
