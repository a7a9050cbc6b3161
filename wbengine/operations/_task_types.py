"""Names of task types in the flows of a store."""

from __future__ import annotations

import contextlib
from typing import Final

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine.persistence import base, models
from wbengine.persistence._pauses import TaskPause
from wbengine.types import _outline as outlines

__all__ = ["unmatched_warning"]

#: Number of unfinished flows, and of all flows, whose task types are read, newest first.
_MAX_FLOWS: Final = 100
_UNFINISHED: Final = frozenset(states.FLOW_STATES) - states.FLOW_ENDED


def unmatched_warning(backend: base.Backend, pattern: str) -> str | None:
    """Return a warning if a pattern matches no task type of unfinished and recent flows.

    The result is None if no task types are stored. This reads at most 200 flows.
    """
    pause, known, uuids = TaskPause(pattern), dict[str, None](), set[str]()
    with contextlib.closing(backend.get_connection()) as connection:
        for states_read in (_UNFINISHED, None):
            for row in connection.list_flows(states=states_read, limit=_MAX_FLOWS).flows:
                types = () if row.uuid in uuids else _types_of(connection, row.uuid)
                uuids.add(row.uuid)
                if any(map(pause.matches, types)):
                    return None
                known.update(dict.fromkeys(types))
    if not known:
        return None
    return (
        f"no unfinished or recent flow has a task of type {pattern!r}"
        f"{_nearest(pattern, list(known))}"
    )


def _types_of(connection: base.Connection, uuid: str) -> list[str]:
    """Return the types of the tasks of a flow; for a workflow, also those of its stored steps."""
    outline = connection.get_outline(uuid)
    if outline is None:
        return []
    types = [
        node.task for node in outline.nodes if node.task is not None and node.kind != outlines.RETRY
    ]
    if outline.accepts_any_signal:
        with contextlib.suppress(exceptions.NotFound):
            notes = [
                record.meta_value(models.STEP)
                for record in connection.get_flow_details(uuid)
                if record.is_step
            ]
            types += [str(note["task"]).replace(":", ".") for note in notes]
    return types


def _nearest(pattern: str, known: list[str]) -> str:
    """Return a hint with a name that has the same last part, or a similar name."""
    last_part = pattern.rpartition(".")[2].casefold()
    for task_type in known:
        if task_type.rpartition(".")[2].casefold() == last_part:
            return f" (did you mean {task_type!r}?)"
    return object_names.hint(pattern, known)
