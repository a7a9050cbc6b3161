"""Pause and resume task types in all flows of a store."""

from __future__ import annotations

import contextlib
from typing import Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.persistence import base
from wbengine.persistence._pauses import TaskPause

__all__ = ["pause_tasks", "paused_tasks", "resume_tasks"]

#: A century: later times cannot be displayed.
MAX_PAUSE_SECONDS: Final = 100 * 365 * 86400


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
                connection.remove_pause(old.pattern)
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
