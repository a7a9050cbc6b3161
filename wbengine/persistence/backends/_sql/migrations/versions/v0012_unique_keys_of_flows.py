"""Add the unique keys of unfinished flows that release 0.1 submitted.

In that release, the logbook of the flow contains the key.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

from wbengine._sql import dialects
from wbengine.persistence.backends._sql import rows

revision = "0012"
down_revision = "0011"

_KEYS: Final = "wbe_unique_keys"
_COLUMNS: Final = ("name", "flow_uuid", "digest", "expires")
#: Key in the `meta` of a logbook: the uuid of the flow that has the key, which is its name.
_UNIQUE: Final = "unique"

_FLOWS_PER_READ: Final = 1000

_READ: Final = sa.text(
    "SELECT f.id, f.uuid, b.name, b.meta FROM wbe_flowdetails f"
    " JOIN wbe_logbooks b ON b.uuid = f.book_uuid"
    " WHERE f.id > :after AND b.meta LIKE :mark"
    " AND (f.state IS NULL OR f.state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED'))"
    " ORDER BY f.id LIMIT :most"
)


def upgrade() -> None:
    """Add the keys. Processes of release 0.1 do not read them."""
    connection = op.get_bind()
    put = dialects.upsert(connection.dialect.name, _KEYS, _COLUMNS, ["name"], keep=_COLUMNS)
    parameters = {"after": -1, "mark": f'%"{_UNIQUE}"%', "most": _FLOWS_PER_READ}
    while True:
        read = connection.execute(_READ, parameters).all()
        found = [
            # The contents of the submission are unknown: it has no digest.
            {"name": row.name, "flow_uuid": row.uuid, "digest": "", "expires": None}
            for row in read
            if rows.object_of(row.meta).get(_UNIQUE) == row.uuid
        ]
        if found:
            connection.execute(put, found)
        if len(read) < _FLOWS_PER_READ:
            return
        parameters["after"] = read[-1].id
