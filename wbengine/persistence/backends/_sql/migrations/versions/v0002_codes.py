"""Versions of the code that runs flows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from wbengine._sql import dialects
from wbengine.persistence.backends._sql import tables
from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    tables.CODES.create(op.get_bind(), checkfirst=True)
    migration_steps.add_column(tables.FLOWS.name, sa.Column("code", dialects.KEY))
