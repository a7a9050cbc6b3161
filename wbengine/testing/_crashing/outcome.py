"""The flow under test, and the record of one run of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.testing._crashing.memory import ProcessMemory
from wbengine.testing._crashing.schedules import At, Schedule
from wbengine.testing._worlds.world import Operation, World

__all__ = ["Event", "FinishedRun", "Outcome", "OwnCheck", "PlannedSignal", "Subject"]

#: Maximum number of moments of a run without faults, after which it counts as endless.
_MAX_MOMENTS: Final = 3_000


class FinishedRun(NamedTuple):
    """The end of a run, for own checks.

    :ivar state: state of the flow: SUCCESS, REVERTED, FAILURE, or WAITING if it waits for a signal
        that never arrives.
    :ivar results: results and inputs by name, if the flow succeeded.
    :ivar error: the failure of the flow.
    :ivar faults: whether faults were injected.
    """

    state: str
    results: Mapping[str, Any]
    error: BaseException | None
    faults: bool


#: An own check of a user. It raises AssertionError.
OwnCheck = Callable[[FinishedRun], object]


class PlannedSignal(NamedTuple):
    """A signal that each run sends.

    :ivar label: its name in schedules: "approved", then "approved 2" for the second one.
    """

    label: str
    name: str
    value: Any


@dataclass(frozen=True)
class Subject:
    """The flow under test.

    :ivar make: returns a new flow, as a new process does.
    :ivar signals: signals in the order in which they are sent.
    :ivar exceptions: classes that the outside systems raise, by the name of the task.
    :ivar is_remote: whether steps run on workers.
    """

    make: Callable[[], Any]
    inputs: Mapping[str, Any]
    worlds: Sequence[World]
    signals: Sequence[PlannedSignal] = ()
    exceptions: Mapping[str, Sequence[type[Exception]]] = field(default_factory=dict)
    is_remote: bool = True
    #: Classes of the tasks of earlier runs, for workers in real processes.
    tasks: frozenset[type] = frozenset()
    #: Number of moments after which a run counts as endless.
    max_moments: int = _MAX_MOMENTS
    options: RequestOptions = field(default_factory=RequestOptions)
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    #: Called at the end of each run, while the worlds contain its effects. They may raise
    #: AssertionError.
    own_checks: Sequence[OwnCheck] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run, for checks and for people.

    :ivar kind: "process", "step" for its start, "success" or "failure" for its end, "operation",
        "refused", "fault", "signal" or "end".
    :ivar step: name of the task that ran; "" outside of steps.
    :ivar execution: the execution or reversion of the step, which all its copies share.
    """

    kind: str
    text: str
    step: str = ""
    execution: tuple[str, int, str] = ("", 0, "")
    line: str = ""
    operation: Operation | None = None
    #: World and key of an operation that a fault replaced.
    refused: tuple[World, str] | None = None


@dataclass
class Outcome:
    """The record of a run.

    :ivar state: state of the flow at the end, or "WAITING" if it waits for a signal that is
        missing.
    :ivar values: results by name.
    :ivar error: the failure of the flow, or what ended the simulation.
    """

    schedule: Schedule
    trace: list[At] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    state: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    #: Numbers of moments, and names of signals, whose faults occurred.
    occurred: set[int | str] = field(default_factory=set)
    #: Names of the steps that started.
    steps: set[str] = field(default_factory=set)
    #: Whether a step that must not run twice was lost with its worker.
    has_lost_step: bool = False
    #: Whether a reversion failed because of a fault.
    has_failed_reversion: bool = False
    #: Whether it exceeded the limits of a run.
    is_endless: bool = False
    #: Signals that were not sent, because the flow did not wait for them.
    unsent: list[str] = field(default_factory=list)
    #: Whether steps run on workers.
    is_remote: bool = True
    #: Simulated seconds from the start to the end.
    seconds: float = 0.0
    #: By the name of each own check that failed, its message.
    failed_checks: dict[str, str] = field(default_factory=dict)
    #: Classes of the tasks that ran.
    tasks: set[type] = field(default_factory=set)
    #: Worlds that tasks used, but which are not under test.
    unknown_worlds: set[World] = field(default_factory=set)
    #: Whether a step precedes another one, which may depend on it.
    is_before: Callable[[str, str], bool] = lambda _, __: False
    #: By name of a workflow that continued as new: its first attempt whose steps can be undone.
    first_attempts: Mapping[str, int] = field(default_factory=dict)

    def is_final(self, step: str) -> bool:
        """Return whether nothing undoes a step, because its workflow continued as new."""
        workflow, _, place = step.rpartition("/")
        attempt = place.partition(".")[0]
        return attempt.isdecimal() and int(attempt) < self.first_attempts.get(workflow, 0)
