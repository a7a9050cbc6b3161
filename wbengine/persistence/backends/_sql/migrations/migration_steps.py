"""Repeatable steps of migrations. Some databases cannot roll back a failed migration."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

__all__ = ["add_column", "add_index"]


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column to a table unless it exists."""
    present = sa.inspect(op.get_bind()).get_columns(table)
    if column.name not in {existing["name"] for existing in present}:
        op.add_column(table, column)


def add_index(name: str, table: str, columns: list[str], **options: Any) -> None:
    """Add an index to a table unless it exists."""
    present = sa.inspect(op.get_bind()).get_indexes(table)
    if name not in {existing["name"] for existing in present}:
        op.create_index(name, table, columns, **options)
