"""How many rows there should be of what belongs together, where the database itself may not notice
that some cannot be found any more.

The servers have checksums of their own for the pages of their files.  sqlite has none: a byte of an
index that changed makes it lead to no row, or to a wrong one, without a word.  So there triggers
count the rows of each book, flow and Map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._sql import dialects
from wbengine.persistence.backends.sql import tables

__all__ = ["ATOMS", "FLOWS", "ITEMS", "Family", "TABLE", "lost", "misled"]

TABLE: Final = "wbe_counts"

_KEPT: Final = sa.text(f"SELECT kept FROM {TABLE} WHERE family_uuid = :key")


@dataclass(frozen=True)
class Family:
    """The rows of `table` that belong to one of `parent`, by its `link`; `key` tells them apart."""

    table: str
    link: str
    parent: str
    key: tuple[str, ...]

    def name(self, uuid: str) -> str:
        """By which they are counted."""
        return f"{self.table}/{uuid}"


FLOWS: Final = Family(tables.FLOWS.name, "book_uuid", tables.BOOKS.name, ("uuid",))
ATOMS: Final = Family(tables.ATOMS.name, "flow_uuid", tables.FLOWS.name, ("uuid",))
ITEMS: Final = Family(tables.ITEMS.name, "atom_uuid", tables.ATOMS.name, ("attempt", "item"))


def lost(
    connection: sa.Connection, family: Family, uuid: str, found: Sequence[Mapping[str, Any]]
) -> exceptions.CorruptRecord | None:
    """What to raise when the rows that were found are not those that there are."""
    if connection.dialect.name != dialects.SQLITE:
        return None
    flow = uuid if family is ATOMS else None
    if any(row[family.link] != uuid for row in found):
        return misled(uuid, flow)
    kept = connection.scalar(_KEPT, {"key": family.name(uuid)}) or 0
    seen = len({tuple(row[name] for name in family.key) for row in found})
    if seen == kept:
        return None
    path = f"{family.parent}/{uuid}"
    return exceptions.CorruptRecord(
        f"{path} is damaged: it has {kept} rows in {family.table}, and {seen} of them can be found;"
        " nothing was changed",
        path=path,
        flow=flow,
    )


def misled(uuid: str, flow: str | None = None) -> exceptions.CorruptRecord:
    """What to raise when a row was found that was not asked for."""
    return exceptions.CorruptRecord(
        f"An index of the database is damaged: it leads from {uuid} to something else",
        path=uuid,
        flow=flow,
    )
