"""Wishes and outlines of flows; each function is part of a transaction of its caller."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.persistence import base, leases
from wbengine.persistence.backends.sql import leasing, reading, shapes, shelving, tables
from wbengine.persistence.backends.sql.statements import Statements
from wbengine.types.outline import Outline

__all__ = ["clear", "outline", "put", "put_outline", "wishes"]

#: So many flows are asked for at a time: databases take no statements of any length.
_MOST: Final = 500
_OUTLINE: Final = sa.text(
    f"SELECT o.outline FROM {tables.FLOWS.name} f"
    f" LEFT JOIN {tables.OUTLINES.name} o ON o.flow_uuid = f.uuid WHERE f.uuid = :uuid"
)
_IS_THERE: Final = sa.text(f"SELECT 1 FROM {tables.FLOWS.name} WHERE uuid = :uuid")


def put(
    connection: sa.Connection, statements: Statements, lease: leases.Lease, wish: base.Wish
) -> bool:
    told = {**leasing.conditions(lease), "wish": _text(wish)}
    return bool(connection.execute(statements.put_wish, told).rowcount)


def clear(
    connection: sa.Connection, statements: Statements, lease: leases.Lease, wish: base.Wish
) -> None:
    told = {**leasing.conditions(lease), "wish": _text(wish)}
    connection.execute(statements.clear_wish, told)


def wishes(
    connection: sa.Connection, statements: Statements, flow_uuids: Collection[str]
) -> Mapping[str, base.Wish]:
    asked, found = list(dict.fromkeys(flow_uuids)), {}
    for start in range(0, len(asked), _MOST):
        some = {"uuids": asked[start : start + _MOST]}
        for uuid, text, epoch in connection.execute(statements.wishes, some):
            found[uuid] = base.Wish.from_dict({**json.loads(text), "epoch": epoch})
    return found


def _text(wish: base.Wish) -> str:
    return shapes.text_of(wish._replace(epoch=0).to_dict())


def outline(connection: sa.Connection, flow_uuid: str) -> Outline | None:
    row = connection.execute(_OUTLINE, {"uuid": flow_uuid}).first()
    if row is None:
        raise reading.missing("flow detail", flow_uuid)
    if row.outline is None:
        return None
    try:
        return Outline.from_bytes(bytes(row.outline))
    except exceptions.InvalidFormat as error:
        path = f"{tables.OUTLINES.name}/{flow_uuid}"
        raise exceptions.CorruptRecord(
            f"{path} is damaged: {error}", path=path, flow=flow_uuid
        ) from error


def put_outline(
    connection: sa.Connection,
    statements: Statements,
    flow_uuid: str,
    data: bytes,
    lease: leases.Lease | None,
) -> None:
    if lease is not None:
        shelving.lock(connection, statements, flow_uuid, None, lease)
    elif connection.execute(_IS_THERE, {"uuid": flow_uuid}).first() is None:
        raise reading.missing("flow detail", flow_uuid)
    connection.execute(statements.put_outline, {"flow_uuid": flow_uuid, "outline": data})
