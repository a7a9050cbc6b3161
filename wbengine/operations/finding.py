"""Flows by uuid, or by as much of it as it takes."""

from __future__ import annotations

import contextlib
from typing import Final

from wbengine import _names, exceptions
from wbengine.persistence import base

__all__ = ["find"]

#: So much of a uuid must be given.
LEAST: Final = 4
#: So many of the latest flows are compared with what is not found.
_COMPARED: Final = 200
_TOLD: Final = 5


def find(backend: base.Backend, text: str) -> base.FlowRow:
    """The flow whose uuid is `text`, or begins with it.

    :raises NotFound: there is none; the text names the nearest, or those with this name.  Or it is
        too short.
    :raises MultipleChoices: there are several.
    """
    wanted = text.strip().lower()
    with contextlib.closing(backend.get_connection()) as connection:
        if len(wanted) < LEAST:
            raise exceptions.NotFound(
                f"{text!r} is too short: it takes the uuid of a flow, or at least {LEAST}"
                f" characters of it{_called(connection, text)}"
            )
        rows = connection.list_flows(uuid=wanted, limit=_TOLD + 1).flows
        if not rows:
            raise exceptions.NotFound(f"There is no flow {text!r}{_hint(connection, text)}")
    if len(rows) > 1 and (whole := [row for row in rows if row.uuid == wanted]):
        return whole[0]
    if len(rows) > 1:
        names = ", ".join(row.uuid for row in rows[:_TOLD])
        more = ", ..." if len(rows) > _TOLD else ""
        raise exceptions.MultipleChoices(f"Several flows begin with {text!r}: {names}{more}")
    return rows[0]


def _hint(connection: base.Connection, text: str) -> str:
    latest = connection.list_flows(limit=_COMPARED).flows
    if not latest:
        return ": the store holds none"
    length = len(text.strip())
    beginnings = {row.uuid[:length]: row.uuid for row in reversed(latest)}
    near = _names.near(text.strip(), beginnings, 1)
    return f" (did you mean {beginnings[near[0]]}?)" if near else _called(connection, text)


def _called(connection: base.Connection, text: str) -> str:
    """The flows with this name."""
    rows = connection.list_flows(name=text, limit=_COMPARED).flows
    named = [row.uuid for row in rows if row.name == text][:_TOLD]
    return f"; of this name there is {', '.join(named)}" if named else ""
