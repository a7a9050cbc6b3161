"""Add the time of the first resend to flows, an index of commands, and unique keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wbengine.persistence.backends._sql import tables
from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "0003"
down_revision = "0002"

_FLOWS = "wbe_flowdetails"


def upgrade() -> None:
    """Add the column, the indexes and the table. Earlier releases keep working without them."""
    tables.UNIQUE_KEYS.create(op.get_bind(), checkfirst=True)
    migration_steps.add_column(_FLOWS, sa.Column("resent_at", sa.Double))
    for index in tables.SPARSE_INDEXES:
        migration_steps.add_index(
            str(index.name), _FLOWS, list(index.columns.keys()), **index.dialect_kwargs
        )
