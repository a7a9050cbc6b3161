"""Leases of flows; each function is part of a transaction of its caller."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.persistence import leases
from wbengine.persistence.backends.sql import reading
from wbengine.persistence.backends.sql.statements import Statements

__all__ = ["conditions", "give_back", "holder", "lost", "refuse", "renew", "take"]


def take(
    connection: sa.Connection,
    statements: Statements,
    flow_uuid: str,
    owner: str,
    seconds: float,
    dead: int | None,
) -> leases.Lease:
    told = {"flow_uuid": flow_uuid, "owner": owner, "seconds": seconds, "dead": dead}
    if not connection.execute(statements.take_lease, told).rowcount:
        raise refuse(connection, statements, flow_uuid)
    row = _row(connection, statements, flow_uuid)
    return leases.Lease(flow_uuid, owner, row.lease_epoch)


def renew(
    connection: sa.Connection, statements: Statements, lease: leases.Lease, seconds: float
) -> None:
    told = {**conditions(lease), "seconds": seconds}
    if not connection.execute(statements.renew_lease, told).rowcount:
        raise lost(connection, statements, lease)


def give_back(connection: sa.Connection, statements: Statements, lease: leases.Lease) -> None:
    connection.execute(statements.give_back_lease, conditions(lease))


def holder(
    connection: sa.Connection, statements: Statements, flow_uuid: str
) -> leases.Lease | None:
    row = _row(connection, statements, flow_uuid)
    if row.lease_owner is None or row.remaining <= 0:
        return None
    return leases.Lease(flow_uuid, row.lease_owner, row.lease_epoch)


def conditions(lease: leases.Lease) -> dict[str, object]:
    """What a statement asks of the row of a flow for this lease."""
    return {"flow_uuid": lease.flow, "lease_owner": lease.owner, "lease_epoch": lease.epoch}


def refuse(
    connection: sa.Connection, statements: Statements, flow_uuid: str
) -> exceptions.WbengineException:
    """Why nobody but its owner may do anything with the flow: it is run, or not kept."""
    try:
        row = _row(connection, statements, flow_uuid)
    except exceptions.NotFound as error:
        return error
    # Its time may have ended since the refusal: that is told all the same.
    held = leases.Lease(flow_uuid, row.lease_owner or "", row.lease_epoch)
    return leases.busy(held, max(0.0, row.remaining or 0.0))


def lost(
    connection: sa.Connection, statements: Statements, lease: leases.Lease
) -> exceptions.LeaseLost:
    """What became of a lease that is not the latest one."""
    row = connection.execute(statements.lease, {"flow_uuid": lease.flow}).first()
    by = row.lease_owner if row is not None else None
    return leases.lost(lease, by, kept=row is not None)


def _row(connection: sa.Connection, statements: Statements, flow_uuid: str) -> sa.Row[Any]:
    row = connection.execute(statements.lease, {"flow_uuid": flow_uuid}).first()
    if row is None:
        raise reading.missing("flow detail", flow_uuid)
    return row
