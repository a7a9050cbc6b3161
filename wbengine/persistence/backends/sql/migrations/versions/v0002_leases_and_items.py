"""Leases of flows, items of Maps, checksums and (in sqlite) counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

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
        _count_rows(table, link)


def _count_rows(table: str, link: str) -> None:
    """Have sqlite count the rows of a table by `link` from now on."""
    bind = op.get_bind()
    if bind.dialect.name != dialects.SQLITE:
        return
    steps.create_table(
        "wbe_counts",
        sa.Column("family_uuid", dialects.TEXT, primary_key=True),
        sa.Column("kept", sa.BigInteger, nullable=False),
    )
    bind.exec_driver_sql(
        f"INSERT INTO wbe_counts (family_uuid, kept)"
        f" SELECT '{table}/' || {link}, COUNT(*) FROM {table} GROUP BY {link}"
    )
    for event, row, step in (("INSERT", "NEW", "+ 1"), ("DELETE", "OLD", "- 1")):
        key = f"'{table}/' || {row}.{link}"
        bind.exec_driver_sql(
            f"CREATE TRIGGER {table}_{event.lower()} AFTER {event} ON {table} BEGIN"
            f" INSERT OR IGNORE INTO wbe_counts (family_uuid, kept) VALUES ({key}, 0);"
            f" UPDATE wbe_counts SET kept = kept {step} WHERE family_uuid = {key};"
            f" DELETE FROM wbe_counts WHERE family_uuid = {key} AND kept = 0;"
            " END"
        )
