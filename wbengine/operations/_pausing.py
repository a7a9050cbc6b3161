"""Pause and resume task types in all flows of a store."""

from __future__ import annotations

import contextlib
from typing import Final

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine.persistence import base, models
from wbengine.persistence._pauses import TaskPause
from wbengine.types import _outline as outlines
from wbengine.types import codec

__all__ = ["pause_tasks", "paused_tasks", "resume_tasks", "unmatched_warning"]

#: A century: later times cannot be displayed.
MAX_PAUSE_SECONDS: Final = 100 * 365 * 86400

#: Number of unfinished flows, and of all flows, whose task types are read, newest first.
_MAX_FLOWS: Final = 100
_UNFINISHED: Final = frozenset(states.FLOW_STATES) - states.FLOW_ENDED


def pause_tasks(
    backend: base.Backend,
    pattern: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    seconds: float | None = None,
) -> TaskPause:
    """Pause the task types that match a pattern, in all flows of the store.

    After at most one second, running engines start no such tasks. Running tasks, reversions and
    requests that workers have received continue. A pause with the same pattern is replaced.

    :param pattern: dotted name of a class or function, with the wildcards of `fnmatch`
        (`billing.*`).
    :param seconds: length of the pause, at most 100 years; None: until `resume_tasks`.
    :raises ValueError: if the pattern or the length is invalid.
    :raises TypeError: if the length is not a number.
    """
    if seconds is not None:
        if type(seconds) not in (int, float):
            raise TypeError(f"The length of a pause must be a number of seconds, got {seconds!r}")
        if not 0 < seconds <= MAX_PAUSE_SECONDS:
            raise ValueError(
                f"The length of a pause must be more than 0 and at most"
                f" {MAX_PAUSE_SECONDS:,} seconds, got {seconds!r}"
            )
    TaskPause(pattern, reason, by).check()
    with contextlib.closing(backend.get_connection()) as connection:
        now = connection.now()
        pause = TaskPause(pattern, reason, by, now, None if seconds is None else now + seconds)
        for old in connection.pauses():
            if old.is_over(now):
                connection.remove_pause(old.pattern, ended=True)  # It may just be paused again.
        connection.put_pause(pause)
    return pause


def resume_tasks(backend: base.Backend, pattern: str) -> None:
    """Remove the pause with this pattern. Its tasks start within a second, unless others match.

    :raises NotFound: if there is none; the text suggests a pattern.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        if not connection.remove_pause(pattern):
            known = [pause.pattern for pause in connection.pauses()]
            raise exceptions.NotFound(
                f"No task type is paused with pattern {pattern!r}"
                f"{object_names.hint(pattern, known)}"
            )


def paused_tasks(backend: base.Backend) -> list[TaskPause]:
    """Return the pauses that are not over, by pattern."""
    with contextlib.closing(backend.get_connection()) as connection:
        now = connection.now()
        return [pause for pause in connection.pauses() if not pause.is_over(now)]


def unmatched_warning(backend: base.Backend, pattern: str) -> str | None:
    """Return a warning if a pattern matches no task type of unfinished and recent flows.

    The result is None if no task types are stored. This reads at most 200 flows, without those
    that cannot be read: the pause is stored.
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
    types: list[str] = []
    unreadable = (exceptions.NotFound, exceptions.CorruptRecord)
    with contextlib.suppress(*unreadable), codec.unknown_classes_as_text():
        outline = connection.get_outline(uuid)
        if outline is None:
            return []
        types += [
            node.task
            for node in outline.nodes
            if node.task is not None and node.kind != outlines.RETRY
        ]
        if outline.accepts_any_signal:
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
