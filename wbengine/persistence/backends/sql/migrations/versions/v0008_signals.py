"""Add a table of signals."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends.sql import tables

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    tables.SIGNALS.create(op.get_bind(), checkfirst=True)
