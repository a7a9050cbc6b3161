"""Add the time of the end to flows, with an index, and duties."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wbengine import states
from wbengine.persistence.backends._sql import tables
from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "0004"
down_revision = "0003"

_FLOWS = "wbe_flowdetails"


def upgrade() -> None:
    """Add the column, the index and the table. Earlier releases keep working without them."""
    tables.DUTIES.create(op.get_bind(), checkfirst=True)
    migration_steps.add_column(_FLOWS, sa.Column("ended", sa.Double))
    ended = ", ".join(f"'{state}'" for state in sorted(states.FLOW_ENDED))
    op.execute(
        f"UPDATE {_FLOWS} SET ended = COALESCE(updated, created)"
        f" WHERE state IN ({ended}) AND ended IS NULL"
    )
    index = tables.ENDED_INDEX
    migration_steps.add_index(
        str(index.name), _FLOWS, list(index.columns.keys()), **index.dialect_kwargs
    )
