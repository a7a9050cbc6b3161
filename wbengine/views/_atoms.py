"""Views of atoms, steps, failures and reversions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wbengine import signals, states
from wbengine.persistence import _history
from wbengine.types import _failure_text, _user_frames
from wbengine.types import failure as ft
from wbengine.views import _formatting, redaction

__all__ = [
    "AtomView",
    "AttemptView",
    "EarlierSteps",
    "FailureView",
    "IncidentView",
    "ItemView",
    "QUEUED",
    "PAUSE",
    "PERMIT",
    "Reason",
    "RETRY",
    "SIGNAL",
    "SLEEP",
    "START",
    "StepView",
    "StepsView",
    "Undone",
    "WaitView",
    "Waiting",
    "failure_of",
    "failures_of",
    "revert_path",
    "shown_state_of_step",
]

#: Displayed state of a task that was submitted and has not started.
QUEUED: Final = "QUEUED"

#: Kinds of `Waiting`.
SIGNAL: Final = "signal"
SLEEP: Final = "sleep"
CHILD: Final = "child"
RETRY: Final = "retry"
PERMIT: Final = "permit"
PAUSE: Final = "pause"
START: Final = "start"

#: Kinds of `Waiting` whose task is displayed as WAITING.
_KINDS_OF_WAITING: Final = frozenset({SIGNAL, SLEEP, CHILD, START})

_REVERT_STATES: Final = frozenset({states.REVERTING, states.REVERTED, states.REVERT_FAILURE})


class AttemptView(_history.Attempt):
    """One attempt of an atom (see `history.Attempt`), with masked secrets."""

    __slots__ = ()

    @property
    def queued(self) -> float | None:
        """Seconds between submission and start."""
        return _history.runtime(self.submitted, self.started)

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self, "executions", "queued", "runtime")


class IncidentView(NamedTuple):
    """A lost worker or a resend during an attempt; see `models.Incident`."""

    event: str
    at: float
    attempt: int
    worker: str | None
    lost_worker: str | None
    item: int | None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a Map.

    :ivar input: description of the item, in the form of `AtomView.result`.
    :ivar tries: number of executions of the Map until the item was processed.
    """

    index: int
    input: str
    state: str
    worker: str | None
    error: str | None
    tries: int
    submitted: float | None
    started: float | None
    ended: float | None

    @property
    def runtime(self) -> float | None:
        """Seconds between start and end."""
        return _history.runtime(self.started, self.ended)

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self, "runtime")


class Waiting(NamedTuple):
    """A condition that the engine waits for before an atom, or more items of a Map, start.

    Times are Unix time.

    :ivar kind: 'signal', 'sleep', 'child', 'retry', 'permit', 'pause' or 'start'.
    :ivar subject: the name of the signal, with its number if that is not 1 ("approved #2"), the
        name of the retried atom, the text of the limit, the pattern of the pause, the uuid of the
        child flow, or the name of the sleeping or delayed task.
    :ivar since: start of the wait or of the pause; None if it is not stored.
    :ivar until: time limit of a signal, end of the sleep, time of the next attempt, end of the
        pause, or the earliest start (`Task.eta`); None if there is none.
    """

    kind: str
    subject: str
    since: float | None = None
    until: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


class Reason(NamedTuple):
    """Why an atom does not run or end.

    :ivar text: the reason in one sentence.
    :ivar gate: the condition that the text describes; None for other reasons.
    """

    text: str
    gate: Waiting | None = None


class WaitView(NamedTuple):
    """A task that waits for a signal or ("") a time, with start and end (or None) in Unix time.

    :ivar number: number of the next signal of this name when the wait began.
    """

    task: str
    signal: str
    since: float
    until: float | None
    number: int = 1

    @property
    def label(self) -> str:
        """The displayed name of the signal, or ""."""
        return signals.label(self.signal, self.number)

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


class StepView(NamedTuple):
    """A step of a workflow.

    Times are Unix time. They, and `worker`, belong to the latest execution or reversion.

    :ivar name: name of the task, or of another kind of step.
    :ivar position: number of the step in its attempt of the workflow, from 0.
    :ivar executions: number of executions, with retries.
    :ivar error: the failure in one line, or None.
    :ivar waiting: what a waiting step waits for, or None.
    :ivar repeated: number of iterations of the folded loop that contains the step; 1 without one.
    :ivar loop: names of the steps of that loop, for the first step of the shown iteration;
        otherwise empty.
    :ivar omitted: number of omitted steps directly before this one, without folded iterations.
    :ivar elapsed: seconds since the start of a step that runs.
    :ivar queued: whether the step was submitted but not started by a worker or slot.
    :ivar execution_runtime: seconds of the latest execution.
    :ivar execution_start: start of the latest execution.
    :ivar reversion_runtime: seconds of the reversion; None unless it is the latest attempt.
    :ivar inherited: uuid of the flow from which a fork inherited the result, or None.
    :ivar called: time of the first submission; `completed` is the time of the completion. Both are
        times on the clock of the engine, or None.
    """

    uuid: str
    name: str
    position: int
    state: str
    executions: int
    worker: str | None
    submitted: float | None
    started: float | None
    ended: float | None
    error: str | None
    waiting: str | None
    repeated: int = 1
    loop: tuple[str, ...] = ()
    omitted: int = 0
    elapsed: float | None = None
    queued: bool = False
    execution_runtime: float | None = None
    reversion_runtime: float | None = None
    called: float | None = None
    completed: float | None = None
    execution_start: float | None = None
    inherited: str | None = None

    @property
    def runtime(self) -> float | None:
        """Seconds between start and end of the latest execution or reversion."""
        return _history.runtime(self.started, self.ended)

    @property
    def shown_state(self) -> str:
        """The displayed state. WAITING and QUEUED are distinguished from RUNNING."""
        return shown_state_of_step(self.state, self.waiting is not None, self.queued)

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(
            self,
            "shown_state",
            "runtime",
            without=("elapsed", "called", "completed", "execution_start"),
        )


def shown_state_of_step(state: str, is_waiting: bool, is_queued: bool) -> str:
    if is_waiting:
        return states.WAITING
    return QUEUED if is_queued else state


class EarlierSteps(NamedTuple):
    """The number of steps of an earlier attempt of a workflow, by state."""

    attempt: int
    counts: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


class StepsView(NamedTuple):
    """The steps of a workflow.

    :ivar attempt: the latest attempt of the workflow that has steps.
    :ivar counts: number of all steps of this attempt by state.
    :ivar shown: the steps of this attempt that are shown, in the order of their calls.
    :ivar reason: why the first incomplete step does not run; None if any step runs.
    :ivar shown_counts: number of all steps of this attempt by displayed state.
    :ivar continued: how often the workflow has continued as new; the steps of the attempts before
        are final, and not stored.
    :ivar continued_at: Unix time of the latest continuation, or None.
    """

    attempt: int
    counts: Mapping[str, int]
    shown: tuple[StepView, ...]
    earlier: tuple[EarlierSteps, ...] = ()
    reason: Reason | None = None
    shown_counts: Mapping[str, int] = MappingProxyType({})
    continued: int = 0
    continued_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self, without=("reason", "shown_counts"))


class AtomView(NamedTuple):
    """One atom of a flow.

    Times are Unix time. `attempt`, `action`, `worker`, `submitted`, `started` and `ended`
    describe the latest attempt.

    :ivar node: position in the outline of the flow.
    :ivar kind: 'task', 'retry' or 'map'; 'step' for a step of a workflow.
    :ivar path: names of the enclosing flows, outermost first.
    :ivar task: name of the class or function.
    :ivar attempt: number of the latest attempt; 0 if there is none.
    :ivar worker: worker of the latest attempt; while `queued`, a worker that may have received it.
    :ivar progress: from 0.0 to 1.0; None if unknown.
    :ivar attempts: stored attempts, including the latest one.
    :ivar attempts_dropped: number of older attempts that are not stored.
    :ivar result: type and size of the result, or its masked value if the redactor shows values.
    :ivar items: number of items of a Map by state.
    :ivar waiting: why the atom does not run or end, in one sentence; None if it progresses or has
        ended.
    :ivar queued: whether the atom was submitted but not started by a worker or slot.
    :ivar item_rows: items of a Map, failed ones first; limited in number.
    :ivar incidents: lost workers and resends.
    :ivar waits_for: signal that the atom waits for, if an engine runs the flow or the flow is
        parked.
    :ivar gate: the condition that `waiting` describes; None if the atom waits for another atom,
        for the limit of its flow, for an engine or for a worker.
    :ivar steps: the steps of a workflow; None if none is recorded.
    :ivar inherited: uuid of the flow from which a fork inherited the result, or None.
    """

    node: int
    uuid: str | None
    name: str
    kind: str
    path: tuple[str, ...]
    task: str | None
    state: str = states.PENDING
    intention: str = states.EXECUTE
    attempt: int = 0
    action: str = "execute"
    worker: str | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    progress: float | None = None
    attempts: tuple[AttemptView, ...] = ()
    attempts_dropped: int = 0
    executions: int = 0
    reversions: int = 0
    failure: FailureView | None = None
    revert_failure: FailureView | None = None
    result: str | None = None
    items: Mapping[str, int] | None = None
    waiting: str | None = None
    queued: bool = False
    item_rows: tuple[ItemView, ...] = ()
    incidents: tuple[IncidentView, ...] = ()
    waits_for: WaitView | None = None
    gate: Waiting | None = None
    steps: StepsView | None = None
    inherited: str | None = None

    @property
    def shown_state(self) -> str:
        """The displayed state. QUEUED and WAITING are distinguished from RUNNING."""
        if self.waits_for is not None:
            return states.WAITING
        if self.gate is not None and self.gate.kind in _KINDS_OF_WAITING:
            return states.WAITING
        return QUEUED if self.queued else self.state

    @property
    def runtime(self) -> float | None:
        """Seconds between start and end of the latest attempt."""
        return _history.runtime(self.started, self.ended)

    @property
    def execution_start(self) -> float | None:
        """Start of the latest execution."""
        return _history.latest_start(self.attempts, "execute")

    @property
    def execution_runtime(self) -> float | None:
        """Seconds of the latest execution."""
        return _history.latest_runtime(self.attempts, "execute")

    @property
    def reversion_runtime(self) -> float | None:
        """Seconds of the reversion; None unless it is the latest attempt."""
        return self.runtime if self.action == "revert" else None

    @property
    def failed_before(self) -> bool:
        """Whether the atom failed and then was reverted, or is being reverted."""
        return self.failure is not None and self.state in _REVERT_STATES

    def to_dict(self) -> dict[str, Any]:
        computed_fields = ("shown_state", "runtime", "execution_runtime", "reversion_runtime")
        return _formatting.as_dict(self, *computed_fields)


@dataclass(frozen=True, slots=True)
class FailureView:
    """A failure of an atom, with masked secrets.

    :ivar type: full name of the exception's class.
    :ivar traceback: entries of the traceback, on the worker if the task ran there.
    :ivar causes: causes of the exception, nearest first, each without `causes`.
    :ivar has_implicit_cause: whether the nearest cause is the `__context__` of the exception.
    :ivar notes: notes of the exception (`add_note`).
    :ivar members: exceptions of an exception group.
    :ivar action: 'execute' or 'revert'.
    :ivar at: Unix time, or None.
    :ivar item: index of an item of a Map.
    :ivar executions: number of executions of the atom up to this attempt.
    :ivar reversions: number of reversions of the atom up to this attempt.
    :ivar step: uuid of the step of a workflow that raised the exception, or None.
    :ivar step_attempt: the attempt of this step that failed; 0 without a step.
    """

    type: str
    message: str
    traceback: str
    causes: tuple[FailureView, ...] = ()
    has_implicit_cause: bool = False
    notes: tuple[str, ...] = ()
    members: tuple[FailureView, ...] = ()
    atom: str | None = None
    uuid: str | None = None
    action: str = "execute"
    worker: str | None = None
    attempt: int = 0
    at: float | None = None
    item: int | None = None
    executions: int = 0
    reversions: int = 0
    step: str | None = None
    step_name: str | None = None
    step_attempt: int = 0

    @property
    def line(self) -> str:
        """The index of an item, the type without module, and the first line of the message."""
        name = self.type.rpartition(".")[2]
        first_line = next(iter(self.message.splitlines()), "")
        item = "" if self.item is None else f"item {self.item}: "
        return f"{item}{name}: {first_line}" if first_line else f"{item}{name}"

    @property
    def text(self) -> str:
        """The complete text in Python's format, the first cause first."""
        return _failure_text.text_of(self, _described)

    @property
    def user_text(self) -> str:
        """The entries of `traceback` for the user's code.

        If the exception has causes, notes or members: `text` with only these entries.
        """
        if self.causes or self.notes or self.members:
            return _failure_text.text_of(self, _described_to_user)
        return _described_to_user(self)[0]

    def to_dict(self) -> dict[str, Any]:
        return {
            **_formatting.as_dict(self, without=("causes", "members")),
            "notes": list(self.notes),
            "causes": [cause._parts() for cause in self.causes],
            "members": [member._parts() for member in self.members],
        }

    def _parts(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "type": self.type, "message": self.message, "traceback": self.traceback,
        }  # fmt: skip
        if self.notes:
            data["notes"] = list(self.notes)
        if self.causes:
            data["causes"] = [cause._parts() for cause in self.causes]
        if self.members:
            data["members"] = [member._parts() for member in self.members]
        return data


def _described(failure: FailureView) -> tuple[str, str]:
    return failure.traceback, _failure_text.with_notes(failure.type, failure.message, failure.notes)


def _described_to_user(failure: FailureView) -> tuple[str, str]:
    return _user_frames.described(failure, _described)


def failure_of(failure: ft.Failure, redactor: redaction.Redactor, **where: Any) -> FailureView:
    """Return the view of a failure. `where` contains the other fields of the view."""
    causes = tuple(_failure(cause, redactor) for cause in failure.causes)
    return _failure(failure, redactor, causes=causes, **where)


def _failure(failure: ft.Failure, redactor: redaction.Redactor, **where: Any) -> FailureView:
    return FailureView(
        type=redactor.text(next(iter(failure), "Exception")),
        message=redactor.text(failure.exception_str),
        traceback=redactor.text(failure.traceback_str),
        has_implicit_cause=failure.has_implicit_cause,
        notes=tuple(map(redactor.text, failure.notes)),
        members=tuple(failure_of(member, redactor) for member in failure.members),
        **where,
    )


@dataclass(frozen=True, slots=True)
class Undone:
    """A reversion of one atom. `state` is REVERTED, REVERT_FAILURE or REVERTING."""

    atom: str
    uuid: str | None
    state: str
    attempt: AttemptView

    def to_dict(self) -> dict[str, Any]:
        attempt_fields = {**self.attempt.to_dict(), "state": self.state}
        return {"atom": self.atom, "uuid": self.uuid, **attempt_fields}


def failures_of(atoms: Iterable[AtomView]) -> tuple[FailureView, ...]:
    """Return the current failures of executions, then of reversions, each in order of time."""
    failures = [
        failure
        for atom in atoms
        for failure in (atom.failure, atom.revert_failure)
        if failure is not None
    ]
    return tuple(sorted(failures, key=_failure_order))


def _failure_order(failure: FailureView) -> tuple[bool, float]:
    return failure.action != "execute", math.inf if failure.at is None else failure.at


def revert_path(atoms: Iterable[AtomView], of_steps: Iterable[Undone] = ()) -> tuple[Undone, ...]:
    """Return all stored reversions ordered by their end; running ones are last."""
    return tuple(sorted([*of_steps, *_reversions(atoms)], key=_reversion_order))


def _reversions(atoms: Iterable[AtomView]) -> Iterator[Undone]:
    for atom in atoms:
        for attempt in atom.attempts:
            if attempt.action != "revert":
                continue
            latest = attempt.attempt == atom.attempt
            state = attempt.state or (atom.state if latest else None) or states.REVERTING
            yield Undone(atom.name, atom.uuid, state, attempt)


def _reversion_order(undone: Undone) -> tuple[float, float]:
    started, ended = undone.attempt.started, undone.attempt.ended
    return math.inf if ended is None else ended, math.inf if started is None else started
