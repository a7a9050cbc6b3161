"""Commands; each function is part of a transaction of its caller."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

import sqlalchemy as sa

from wbengine.persistence import base, leases
from wbengine.persistence.backends.sql import leasing, shapes
from wbengine.persistence.backends.sql.statements import Statements

__all__ = ["clear", "put", "read_all"]

#: So many flows are asked for at a time: databases take no statements of any length.
_MOST: Final = 500


def put(
    connection: sa.Connection,
    statements: Statements,
    lease: leases.Lease,
    command: base.FlowCommand,
) -> bool:
    told = {**leasing.conditions(lease), "wish": _text(command)}
    return bool(connection.execute(statements.put_wish, told).rowcount)


def clear(
    connection: sa.Connection,
    statements: Statements,
    lease: leases.Lease,
    command: base.FlowCommand,
) -> None:
    told = {**leasing.conditions(lease), "wish": _text(command)}
    connection.execute(statements.clear_wish, told)


def read_all(
    connection: sa.Connection, statements: Statements, flow_uuids: Collection[str]
) -> Mapping[str, base.FlowCommand]:
    asked, found = list(dict.fromkeys(flow_uuids)), {}
    for start in range(0, len(asked), _MOST):
        some = {"uuids": asked[start : start + _MOST]}
        for uuid, text, epoch in connection.execute(statements.wishes, some):
            found[uuid] = base.FlowCommand.from_dict({**json.loads(text), "epoch": epoch})
    return found


def _text(command: base.FlowCommand) -> str:
    return shapes.text_of(command._replace(epoch=0).to_dict())
