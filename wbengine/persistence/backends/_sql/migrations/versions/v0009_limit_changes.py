"""Add changes of limits."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends._sql import tables

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table. Earlier releases keep working without it."""
    tables.LIMIT_CHANGES.create(op.get_bind(), checkfirst=True)
