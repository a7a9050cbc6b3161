"""Limits of the tasks of steps."""

from __future__ import annotations

from typing import Any

from wbengine._tasks import functors, limit_attributes

__all__ = ["limit_of"]


def limit_of(task: Any) -> limit_attributes.Limit | None:
    """Return the limit of the task of a step, or None.

    :raises TypeError, ValueError: if an attribute is invalid.
    """
    if task.rate_limit is None and task.concurrency is None:
        return None
    name = functors.code_of(task)
    return limit_attributes.limit_of(task, f"task {name!r}", name, None)
