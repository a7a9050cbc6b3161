"""Search for a flow by its uuid or the first characters of it."""

from __future__ import annotations

import contextlib
from typing import Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.persistence import base

__all__ = ["find"]

MIN_LENGTH: Final = 4
#: Number of latest flows that are searched for a suggestion.
_MAX_COMPARED: Final = 200
_MAX_LISTED: Final = 5


def find(backend: base.Backend, text: str) -> base.FlowRow:
    """Return the flow whose uuid is `text` or begins with it.

    :raises NotFound: if there is none, or `text` is too short. The message suggests a uuid, or
        lists the flows with this name.
    :raises MultipleChoices: if there are several.
    """
    prefix = text.strip().lower()
    with contextlib.closing(backend.get_connection()) as connection:
        if len(prefix) < MIN_LENGTH:
            raise exceptions.NotFound(
                f"ID must be the uuid of a flow or at least its first {MIN_LENGTH} characters, got"
                f" {text!r}{_flows_named(connection, text)}"
            )
        with contextlib.suppress(exceptions.NotFound):
            return connection.get_row(prefix)
        rows = connection.list_flows(uuid=prefix, limit=_MAX_LISTED + 1).flows
        if not rows:
            raise exceptions.NotFound(f"Unknown flow {text!r}{_hint(connection, text)}")
    if len(rows) > 1:
        names = ", ".join(row.uuid for row in rows[:_MAX_LISTED])
        ellipsis = ", ..." if len(rows) > _MAX_LISTED else ""
        raise exceptions.MultipleChoices(f"Flow id {text!r} is ambiguous: {names}{ellipsis}")
    return rows[0]


def _hint(connection: base.Connection, text: str) -> str:
    latest = connection.list_flows(limit=_MAX_COMPARED).flows
    if not latest:
        return "; the store contains no flows"
    length = len(text.strip())
    uuid_by_prefix = {row.uuid[:length]: row.uuid for row in reversed(latest)}
    suggestions = object_names.near(text.strip(), uuid_by_prefix, 1)
    return (
        f" (did you mean {uuid_by_prefix[suggestions[0]]}?)"
        if suggestions
        else _flows_named(connection, text)
    )


def _flows_named(connection: base.Connection, text: str) -> str:
    rows = connection.list_flows(name=text, limit=_MAX_COMPARED).flows
    named = [row.uuid for row in rows if row.name.casefold() == text.casefold()][:_MAX_LISTED]
    return f"; flows with this name: {', '.join(named)}" if named else ""
