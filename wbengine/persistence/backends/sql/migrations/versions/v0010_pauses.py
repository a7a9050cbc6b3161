"""Add a table of pauses."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends.sql import tables

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    tables.PAUSES.create(op.get_bind(), checkfirst=True)
