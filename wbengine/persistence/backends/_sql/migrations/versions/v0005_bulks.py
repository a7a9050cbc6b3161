"""Add operations on many flows."""

from __future__ import annotations

from alembic import op

from wbengine.persistence.backends._sql import tables

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the tables. Earlier releases keep working without them."""
    for table in (tables.BULKS, tables.BULK_FLOWS):
        table.create(op.get_bind(), checkfirst=True)
