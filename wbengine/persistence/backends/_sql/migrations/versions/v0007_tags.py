"""Add an index of the tags of flows."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

from wbengine.persistence.backends._sql import rows, tables
from wbengine.persistence.backends._sql.statements import put_tags

revision = "0007"
down_revision = "0006"

_FLOWS_PER_READ: Final = 1000

_READ: Final = sa.text(
    "SELECT id, uuid, meta FROM wbe_flowdetails WHERE id > :after ORDER BY id LIMIT :most"
)


def upgrade() -> None:
    """Add the table and the tags of stored flows. Earlier releases keep working without it."""
    connection = op.get_bind()
    tables.TAGS.create(connection, checkfirst=True)
    put = put_tags(connection.dialect.name)
    after = -1
    while True:
        read = connection.execute(_READ, {"after": after, "most": _FLOWS_PER_READ}).all()
        found = [
            row
            for uuid, meta in ((each.uuid, rows.object_of(each.meta)) for each in read)
            for row in rows.tag_rows(uuid, meta, given=True)
        ]
        if found:
            connection.execute(put, found)
        if len(read) < _FLOWS_PER_READ:
            return
        after = read[-1].id
