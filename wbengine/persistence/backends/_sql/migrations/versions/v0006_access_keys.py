"""Add access keys."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends._sql import tables

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table. Earlier releases keep working without it."""
    tables.ACCESS_KEYS.create(op.get_bind(), checkfirst=True)
