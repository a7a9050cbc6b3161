"""Add a table of task logs."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends.sql import tables

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    tables.LOGS.create(op.get_bind(), checkfirst=True)
