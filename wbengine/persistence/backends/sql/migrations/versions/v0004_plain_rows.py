"""Drop checksums and counts; add indexes of flows by state and by logbook."""

from __future__ import annotations

from typing import Final

from alembic import op

from wbengine._sql import dialects
from wbengine.persistence.backends.sql.migrations import steps

revision = "0004"
down_revision = "0003"

_COUNTED: Final = ("wbe_flowdetails", "wbe_atomdetails", "wbe_itemdetails")


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name == dialects.SQLITE:
        for table in _COUNTED:
            for event in ("insert", "delete"):
                bind.exec_driver_sql(f"DROP TRIGGER IF EXISTS {table}_{event}")
        bind.exec_driver_sql("DROP TABLE IF EXISTS wbe_counts")
    for table in ("wbe_logbooks", *_COUNTED):
        steps.drop_column(table, "checksum")
    steps.drop_column("wbe_flowdetails", "wish_epoch")
    # Create the new index before dropping the old one: MySQL's foreign key needs an index.
    steps.add_index("ix_wbe_flowdetails_book", "wbe_flowdetails", ["book_uuid", "created", "id"])
    steps.drop_index("ix_wbe_flowdetails", "wbe_flowdetails")
    steps.add_index(
        "ix_wbe_flowdetails_state",
        "wbe_flowdetails",
        ["state", "created", "id"],
        mysql_length={"state": 16},
    )
