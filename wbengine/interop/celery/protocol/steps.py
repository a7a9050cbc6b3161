"""What is to be done once a task has ended: in this order, before it is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wbengine.interop.celery.protocol.message import TaskMessage

__all__ = ["CountChord", "Following", "Missed", "SaveGroup", "Send", "Step"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; where it says nothing, to the default queue."""

    message: TaskMessage
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None


@dataclass(frozen=True, slots=True)
class CountChord:
    """Tell the result backend how many parts the chord of this group has, before they are sent."""

    group: str
    size: int


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Have the result backend keep what a group is made of: some of its parts are groups again.

    `result` is what Celery's `GroupResult.as_tuple()` gives.
    """

    group: str
    result: Any


Step = Send | CountChord | SaveGroup


@dataclass(slots=True)
class Following:
    """The steps in their order, and the children that the result of the task tells.

    Children are what Celery's `AsyncResult.as_tuple()` gives: `((id, parent), children)`.
    """

    steps: list[Step] = field(default_factory=list)
    children: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Missed:
    """A call that will never come, as one before it failed: its result is that failure.

    If `chord` is not None it was a part of that chord, and counts as failed.
    """

    id: str
    group: str | None = None
    group_index: int | None = None
    chord: Mapping[str, Any] | None = None
