"""Leases of flows, items of Maps, checksums and (in sqlite) counts."""

from __future__ import annotations

import sqlalchemy as sa

from wbengine._sql import dialects
from wbengine.persistence.backends.sql.migrations import steps

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for table in ("wbe_logbooks", "wbe_flowdetails", "wbe_atomdetails"):
        steps.add_column(table, sa.Column("checksum", sa.BigInteger))
    steps.add_column("wbe_flowdetails", sa.Column("lease_owner", dialects.TEXT))
    steps.add_column(
        "wbe_flowdetails",
        sa.Column("lease_epoch", sa.BigInteger, nullable=False, server_default="0"),
    )
    steps.add_column("wbe_flowdetails", sa.Column("lease_until", sa.Double))
    steps.create_table(
        "wbe_itemdetails",
        sa.Column("atom_uuid", dialects.KEY, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("item", sa.BigInteger, nullable=False, autoincrement=False),
        *(
            sa.Column(name, dialects.TEXT)
            for name in ("state", "value", "results", "failure", "more")
        ),
        sa.Column("checksum", sa.BigInteger),
        sa.PrimaryKeyConstraint("atom_uuid", "attempt", "item", name="pk_wbe_itemdetails"),
        sa.ForeignKeyConstraint(
            ["atom_uuid"],
            ["wbe_atomdetails.uuid"],
            name="fk_wbe_itemdetails",
            ondelete="CASCADE",
        ),
    )
    for table, link in (
        ("wbe_flowdetails", "book_uuid"),
        ("wbe_atomdetails", "flow_uuid"),
        ("wbe_itemdetails", "atom_uuid"),
    ):
        steps.count_rows(table, link)
