"""The SQL of a backend, made once for its kind of database."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from wbengine._sql import dialects
from wbengine.persistence.backends.sql import shapes, tables

__all__ = ["Statements"]

_FLOWS: Final = tables.FLOWS.name
_ATOMS: Final = tables.ATOMS.name
_ITEMS: Final = tables.ITEMS.name
_OUTLINES: Final = tables.OUTLINES.name

#: The first insertion decides where a record belongs.
_FIRST: Final = ("book_uuid", "flow_uuid", "kind", "birth")


_OURS: Final = "(lease_owner = :lease_owner AND lease_epoch = :lease_epoch)"


class Statements:
    """Texts of statements.

    A transaction that changes a flow, or what is in it, begins with one that locks the flow's row:
    the condition of the lease is checked there, and holds until the transaction ends.
    """

    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        free = f"(lease_owner IS NULL OR lease_until <= {now})"
        flow = f"FROM {_FLOWS} WHERE uuid = :flow_uuid"

        self.put_book = self._upsert(dialect, shapes.BOOK)
        self.put_flow = self._upsert(
            dialect, shapes.FLOW, "book_uuid", "created", "birth", "updated", updated=now
        )
        self.put_atoms = self._upsert(dialect, shapes.ATOM, "changed")
        self.put_items = self._upsert(dialect, shapes.ITEM, "changed")
        self.touch_atoms = sa.text(f"UPDATE {_ATOMS} SET changed = :changed WHERE uuid = :uuid")
        self.put_outline = dialects.upsert(
            dialect, _OUTLINES, ["flow_uuid", "outline"], ["flow_uuid"]
        )
        self.forget_items = sa.text(
            f"DELETE FROM {_ITEMS} WHERE atom_uuid = :atom_uuid AND attempt <> :attempt"
        )

        news = ", ".join(
            f"{name} = :{name}" for name in shapes.FLOW.columns if name not in shapes.FLOW.keys
        )
        news += f", updated = {now}"
        self.write_ours = sa.text(f"UPDATE {_FLOWS} SET {news} WHERE uuid = :flow_uuid AND {_OURS}")
        self.write_free = sa.text(f"UPDATE {_FLOWS} SET {news} WHERE uuid = :flow_uuid AND {free}")
        self.lock_ours = sa.text(f"SELECT 1 {flow} AND {_OURS}{lock}")
        self.lock_free = sa.text(f"SELECT 1 {flow} AND {free}{lock}")

        #: `remaining` is NULL where nobody holds the lease, and 0 or less where its time is over.
        self.lease = sa.text(
            f"SELECT lease_owner, lease_epoch, lease_until - {now} AS remaining {flow}"
        )

        self.book_for_update = sa.text(f"{tables.select(tables.BOOKS)} WHERE uuid = :uuid{lock}")
        self.flow_for_update = sa.text(
            f"{tables.select(tables.FLOWS, f'lease_until - {now} AS remaining')}"
            f" WHERE uuid = :flow_uuid{lock}"
        )

        self._about_leases(now, free)
        self._about_wishes(now)

    def _about_leases(self, now: str, free: str) -> None:
        lease = (
            f"lease_owner = :owner, lease_until = {now} + :seconds, updated = {now}, wish = NULL"
        )
        # First what is told by the epoch before: MySQL takes one after the other.
        epochs = "wish_epoch = lease_epoch + 1, lease_epoch = lease_epoch + 1"
        self.take_lease = sa.text(
            f"UPDATE {_FLOWS} SET {lease}, {epochs}"
            f" WHERE uuid = :flow_uuid AND ({free} OR lease_epoch = :dead)"
        )
        self.renew_lease = sa.text(
            f"UPDATE {_FLOWS} SET lease_until = {now} + :seconds, updated = {now}"
            f" WHERE uuid = :flow_uuid AND {_OURS}"
        )
        self.give_back_lease = sa.text(
            f"UPDATE {_FLOWS} SET lease_owner = NULL, lease_until = NULL, wish = NULL,"
            f" updated = {now} WHERE uuid = :flow_uuid AND {_OURS}"
        )

    def _about_wishes(self, now: str) -> None:
        self.put_wish = sa.text(
            f"UPDATE {_FLOWS} SET wish = :wish"
            f" WHERE uuid = :flow_uuid AND {_OURS} AND lease_until > {now}"
            " AND wish_epoch = lease_epoch"
        )
        self.clear_wish = sa.text(
            f"UPDATE {_FLOWS} SET wish = NULL WHERE uuid = :flow_uuid AND {_OURS} AND wish = :wish"
        )
        self.wishes = sa.text(
            f"SELECT uuid, wish, wish_epoch FROM {_FLOWS} WHERE uuid IN :uuids"
            " AND wish IS NOT NULL AND lease_owner IS NOT NULL AND wish_epoch = lease_epoch"
        ).bindparams(sa.bindparam("uuids", expanding=True))

    @staticmethod
    def _upsert(dialect: str, shape: shapes.Shape, *beside: str, **given: str) -> sa.TextClause:
        columns = (*shape.columns, *beside)
        keys = [name for name in shape.keys if name not in _FIRST]
        return dialects.upsert(dialect, shape.table, columns, keys, keep=_FIRST, given=given)
