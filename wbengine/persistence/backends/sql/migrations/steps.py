"""Steps of migrations that may be repeated: some databases cannot undo those of one that failed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from wbengine._sql import dialects

__all__ = ["add_column", "add_index", "count_rows", "create_table"]


def create_table(name: str, *parts: Any) -> None:
    """Make a table, unless it is there."""
    if not sa.inspect(op.get_bind()).has_table(name):
        op.create_table(name, *parts, **dialects.TABLE)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column to a table, unless it is there."""
    present = sa.inspect(op.get_bind()).get_columns(table)
    if column.name not in {known["name"] for known in present}:
        op.add_column(table, column)


def add_index(name: str, table: str, columns: list[str]) -> None:
    """Add an index to a table, unless it is there."""
    present = sa.inspect(op.get_bind()).get_indexes(table)
    if name not in {known["name"] for known in present}:
        op.create_index(name, table, columns)


def count_rows(table: str, link: str) -> None:
    """Have sqlite count the rows of a table by `link` from now on; see `counting`."""
    bind = op.get_bind()
    if bind.dialect.name != dialects.SQLITE:
        return
    create_table(
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
