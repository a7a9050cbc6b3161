"""Queries that read all rows of a table in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from wbengine._sql import dialects

__all__ = ["identity", "next_rows"]


def identity(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns that identify a row, apart from its number."""
    unique = (each for each in table.constraints if isinstance(each, sa.UniqueConstraint))
    return list(next(unique, table.primary_key).columns)


def next_rows(
    table: sa.Table, after: Mapping[str, Any] | None, limit: int, dialect: str
) -> sa.Select[Any]:
    """Return the query of the rows that follow a row in the order of the primary key.

    :param after: None: the first rows.
    """
    order = list(table.primary_key.columns)
    statement = sa.select(table).order_by(*order).limit(limit)
    if after is None:
        return statement
    values = [sa.literal(after[each.name]) for each in order]
    if dialect != dialects.MYSQL:
        return statement.where(sa.tuple_(*order) > sa.tuple_(*values))
    # MySQL and MariaDB use no index for a comparison of tuples: they would read, and lock, all rows
    # from the first one.
    same: list[sa.ColumnElement[bool]] = []
    later: list[sa.ColumnElement[bool]] = []
    for column, value in zip(order, values, strict=True):
        later.append(sa.and_(*same, column > value))
        same.append(column == value)
    return statement.where(sa.or_(*later))
