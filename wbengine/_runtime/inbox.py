"""Events for the run loop.

Executors, other threads and gates put events into the inbox of a run. The loop handles them in
order. Events are immutable.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wbengine._calls import invocation as calls
from wbengine._runtime.node_calls import Call
from wbengine.persistence._pauses import TaskPause

__all__ = [
    "Event", "Finished", "Inbox", "IterationInterrupted", "PausesChanged", "PermitsGranted",
    "ProgressReported", "SignalsReceived", "StopRequested", "Withdrawn",
]  # fmt: skip


class Finished(NamedTuple):
    """A call has ended."""

    call: Call
    outcome: calls.Outcome


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Calls were withdrawn before they started."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class SignalsReceived:
    """The flow received signals that it did not have before."""


@dataclass(frozen=True, slots=True)
class PermitsGranted:
    """A limit may have granted permits to the flow."""


@dataclass(frozen=True, slots=True)
class PausesChanged:
    """The pauses of task types in the store changed; these are all of them."""

    pauses: tuple[TaskPause, ...]


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The stop signal of the run changed."""


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """A running task reported changes to write soon."""


@dataclass(frozen=True, slots=True)
class IterationInterrupted:
    """The loop handled outcomes before it had submitted all calls of an iteration."""


Event = (
    Finished
    | Withdrawn
    | SignalsReceived
    | PermitsGranted
    | PausesChanged
    | StopRequested
    | ProgressReported
    | IterationInterrupted
)

Inbox = queue.SimpleQueue[Event]
