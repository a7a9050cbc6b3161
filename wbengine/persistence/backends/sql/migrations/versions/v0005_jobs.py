"""Add a table of jobs."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends.sql import tables

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    tables.JOBS.create(op.get_bind(), checkfirst=True)
