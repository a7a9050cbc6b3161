"""Outlines of flows; each function is part of a transaction of its caller."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.persistence import leases
from wbengine.persistence.backends.sql import reading, shelving, tables
from wbengine.persistence.backends.sql.statements import Statements
from wbengine.types.outline import Outline

__all__ = ["put", "read"]

_OUTLINE: Final = sa.text(
    f"SELECT o.outline FROM {tables.FLOWS.name} f"
    f" LEFT JOIN {tables.OUTLINES.name} o ON o.flow_uuid = f.uuid WHERE f.uuid = :uuid"
)
_IS_THERE: Final = sa.text(f"SELECT 1 FROM {tables.FLOWS.name} WHERE uuid = :uuid")


def read(connection: sa.Connection, flow_uuid: str) -> Outline | None:
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


def put(
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
