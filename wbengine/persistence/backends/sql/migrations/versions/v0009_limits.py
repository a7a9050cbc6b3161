"""Add a table of limits."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends.sql import tables

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    tables.LIMITS.create(op.get_bind(), checkfirst=True)
