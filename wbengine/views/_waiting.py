"""Reasons why a flow or an atom does not progress, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from wbengine import signals, states
from wbengine.persistence import _codes
from wbengine.persistence._pauses import QueuePause, TaskPause, pause_of
from wbengine.persistence.models import CHILD as CHILD_FLOW
from wbengine.persistence.models import RETRY_AT, STARTS_AT, WAITS_FOR, WORKFLOW
from wbengine.types import _outline as outlines
from wbengine.views import _formatting
from wbengine.views._atoms import (
    CHILD,
    PAUSE,
    PERMIT,
    RETRY,
    SIGNAL,
    SLEEP,
    START,
    Reason,
    Waiting,
)
from wbengine.views._structure import Structure

__all__ = [
    "WAITS_FOR",
    "Blocking",
    "Situation",
    "atom_reason",
    "flow_limit_text",
    "flow_reason",
    "describe_wait",
    "describe_start",
    "wait_of",
    "start_of",
    "step_reason",
]

#: States of atoms that no longer delay their successors.
SETTLED: Final = frozenset({states.SUCCESS, states.IGNORE})
#: States of atoms that must be reverted before their predecessors are reverted.
_STATES_TO_REVERT: Final = frozenset(
    {states.SUCCESS, states.FAILURE, states.RUNNING, states.REVERTING}
)
#: Minimum time since submission in seconds, before a task is reported as waiting.
_GRACE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of the whole flow.

    :ivar now: Unix time.
    :ivar owner: description of the process that runs the flow, or None.
    :ivar died: whether the owner has certainly ended.
    :ivar suspended: reason of the suspension, or None.
    :ivar offered: tasks that known workers offer; None if unknown.
    :ivar on_workers: whether workers run the tasks and report their start.
    :ivar in_pool: whether slots of a local pool run the tasks and report their start.
    :ivar pauses: the pauses of task types in the store.
    :ivar difference: the difference that blocks the flow, or None.
    :ivar missing_code: code for which the flow waits, because no conductor has it; or None.
    :ivar unserved: whether the flow waits for a conductor, and none runs.
    :ivar requested: whether a request to run the flow again is pending.
    :ivar queue_pause: the pause of its queue that holds back the flow, or None.
    """

    state: str
    now: float
    owner: str | None
    died: bool
    suspended: str | None = None
    offered: Collection[str] | None = None
    on_workers: bool = True
    cancelling: bool = False
    parked: bool = False
    in_pool: bool = False
    pauses: tuple[TaskPause, ...] = ()
    difference: str | None = None
    missing_code: str | None = None
    unserved: bool = False
    requested: bool = False
    queue_pause: QueuePause | None = None

    @property
    def is_run(self) -> bool:
        """Whether an engine runs the flow."""
        return self.owner is not None and not self.died


class Blocking:
    """The nodes for which an atom waits: unsettled predecessors, or successors to revert first.

    Results for flows are cached, so that the cost for all atoms is O(nodes + edges).

    :param state_of: returns the state of an atom.
    """

    def __init__(self, structure: Structure, state_of: Callable[[int], str]) -> None:
        self._structure = structure
        self._state_of = state_of
        self._unsettled = self._count(lambda state: state not in SETTLED)
        #: Flow -> nodes outside it for which all its members wait.
        self._outer_blockers: dict[int, Sequence[int]] = {-1: ()}
        nodes = structure.outline.nodes
        for number, node in enumerate(nodes):
            if node.kind == outlines.FLOW:
                self._outer_blockers[number] = self.before(number)
        #: The reason for all atoms of a flow that waits for its limit and has not started.
        self.flow_limited: str | None = None
        limit = flow_limit_text(nodes[0])
        if limit is not None and all(
            state_of(node) == states.PENDING for node in structure.atoms()
        ):
            self.flow_limited = limit

    def _count(self, matches: Callable[[str], bool]) -> list[int]:
        """Return for each node the number of its atoms whose state satisfies `matches`."""
        structure = self._structure
        totals = [0] * len(structure)
        nodes, parents = structure.outline.nodes, structure.parents
        for number in range(len(nodes) - 1, -1, -1):
            if nodes[number].kind != outlines.FLOW:
                totals[number] = 1 if matches(self._state_of(number)) else 0
            if parents[number] >= 0:
                totals[parents[number]] += totals[number]
        return totals

    def before(self, node: int) -> Sequence[int]:
        """Return the nodes that must be settled before `node` runs."""
        if predecessors := [each for each in self._structure.before[node] if self._unsettled[each]]:
            return predecessors
        flow = self._structure.parents[node]
        retry = self._structure.retry[flow] if flow >= 0 else -1
        if retry not in (-1, node) and self._unsettled[retry]:
            return (retry,)
        return self._outer_blockers[flow]

    @cached_property
    def _unreverted(self) -> Sequence[int]:
        return self._count(lambda state: state in _STATES_TO_REVERT)

    def after(self, node: int) -> Sequence[int]:
        """Return the nodes that must be reverted before `node`."""
        for scope in (node, *self._structure.flows_around(node)):
            if successors := [
                successor
                for successor in self._structure.after[scope]
                if self._unreverted[successor]
            ]:
                return successors
        return ()

    def limit_reason(self, node: int) -> Reason | None:
        """Return the reason for an atom that waits for its limit; None if it has no limit."""
        return _limit_reason(self._structure.outline.nodes[node])

    def pause_reason(self, node: int, situation: Situation) -> Reason | None:
        """Return the reason for an atom whose task type is paused, otherwise None."""
        return _pause_reason(self._structure.outline.nodes[node], situation)

    def describe(self, nodes: Sequence[int]) -> str:
        node = self._structure.outline.nodes[nodes[0]]
        name = f"flow {node.name}" if node.kind == outlines.FLOW else node.name
        return name if len(nodes) == 1 else f"{name} and {len(nodes) - 1:,} more"


def flow_limit_text(node: outlines.OutlineNode) -> str | None:
    """Return the reason for a flow that waits for its limit; None for other nodes."""
    if node.limit is None or node.kind != outlines.FLOW:
        return None
    return f"The flow starts when its limit permits it: {node.limit}."


def _limit_reason(node: outlines.OutlineNode) -> Reason | None:
    if node.limit is None:
        return None
    subject = "Its items start" if node.kind == outlines.MAP else "Starts"
    return Reason(
        f"{subject} when the limit permits it: {node.limit}.", Waiting(PERMIT, node.limit)
    )


def _pause_reason(node: outlines.OutlineNode, situation: Situation) -> Reason | None:
    if not situation.pauses or node.task is None or node.kind == outlines.RETRY:
        return None
    pause = pause_of(node.task, situation.pauses, situation.now)
    if pause is None:
        return None
    subject = "Its items are" if node.kind == outlines.MAP else "Its task type is"
    pattern = "" if pause.pattern == node.task else f" ({pause.pattern})"
    text = _pause_text(f"{subject} paused{pattern}", pause, situation.now, pause.until)
    return Reason(text, Waiting(PAUSE, pause.pattern, pause.since, pause.until))


def _pause_text(
    subject: str, pause: TaskPause | QueuePause, now: float, until: float | None = None
) -> str:
    """Return a sentence that continues `subject` with the sender, the times and the reason."""
    sender = f" by {pause.by}" if pause.by else ""
    end = "" if until is None else f" until {_formatting.clock(until, now)}"
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{subject}{sender} since {_formatting.clock(pause.since, now)}{end}{reason}."


def wait_of(record: Any) -> Waiting | None:
    """Return the signal or time that a task waits for according to its record, or None."""
    wait = None if record is None else record.waits_for
    if wait is None:
        return None
    if (child := record.meta_value(CHILD_FLOW)) is not None:
        return Waiting(CHILD, str(child), wait.since, wait.until)
    if wait.signal:
        return Waiting(SIGNAL, signals.label(wait.signal, wait.number), wait.since, wait.until)
    return Waiting(SLEEP, record.name, wait.since, wait.until)


def start_of(record: Any, now: float, *, parked: bool = False) -> Waiting | None:
    """Return the earliest start (`eta`) of a task that waits for it, if it is in the future."""
    if record is None or record.started is not None:
        return None
    if record.state != (states.PENDING if parked else states.RUNNING):
        return None
    until = record.meta_value(STARTS_AT)
    if not isinstance(until, int | float) or until <= now:
        return None
    return Waiting(START, record.name, record.submitted, until)


def describe_start(wait: Waiting, now: float) -> str:
    """Return a text with the earliest start of a task."""
    assert wait.until is not None
    seconds_left = _formatting.seconds(wait.until - now)
    return f"starts at {_formatting.clock(wait.until, now)}, in {seconds_left}"


def atom_reason(
    node: int, record: Any, state: str, task: str | None, blocking: Blocking, situation: Situation
) -> Reason | None:
    """Return why an atom does not run or end; None if it progresses or has ended."""
    if state in (states.RUNNING, states.REVERTING):
        return _active_reason(node, record, state, task, blocking, situation)
    if state == states.RETRYING:
        return _retry_reason(blocking.describe((node,)), record, situation)
    if state == states.IGNORE:
        return Reason("Ignored by its decider.")
    if state in (states.SUCCESS, states.FAILURE):
        return _revert_reason(node, record, blocking, situation)
    if state != states.PENDING:
        return None
    if situation.parked and (reason := _wait_or_start_reason(record, situation)):
        return reason
    if situation.state in (states.FAILURE, states.REVERTED):
        return Reason("Did not start: the flow ended first.")
    if situation.state == states.SUCCESS:
        return None
    if blocking.flow_limited is not None:
        return _common_reason(situation) or Reason(blocking.flow_limited)
    if blockers := blocking.before(node):
        return Reason(f"Waits for {blocking.describe(blockers)}.")
    return (
        _common_reason(situation)
        or blocking.pause_reason(node, situation)
        or blocking.limit_reason(node)
        or Reason("Ready to start.")
    )


def step_reason(record: Any, task: str, limit: str | None, situation: Situation) -> Reason | None:
    """Return why an incomplete step of a workflow does not run; None if it runs.

    :param task: the type of its task.
    :param limit: text of the limit of its task, or None.
    """
    if situation.state in states.FLOW_ENDED:
        return None
    if wait := wait_of(record):
        return _wait_reason(wait, situation)
    if not (situation.is_run or situation.parked):
        return None
    if reason := _wait_or_start_reason(record, situation):
        return reason
    if record.state != states.RUNNING or record.started is not None:
        return None
    node = outlines.OutlineNode(record.name, outlines.TASK, None, task, limit=limit)
    pause = _pause_reason(node, situation)
    reports_starts = situation.on_workers or situation.in_pool
    if pause is not None and pause.gate is not None and not reports_starts:
        # The start of the step may not be stored yet.
        is_paused = (record.submitted or 0.0) >= (pause.gate.since or 0.0)
        pause = pause if is_paused else None
    return pause or _limit_reason(node)


def _wait_or_start_reason(record: Any, situation: Situation) -> Reason | None:
    """Return for which signal or time a task waits, or None."""
    if wait := wait_of(record):
        return _wait_reason(wait, situation)
    if wait := start_of(record, situation.now, parked=situation.parked):
        return Reason(f"{describe_start(wait, situation.now).capitalize()}.", wait)
    return None


def _active_reason(
    node: int, record: Any, state: str, task: str | None, blocking: Blocking, situation: Situation
) -> Reason | None:
    has_pending_items = _has_pending_items(record, state, situation)
    if (has_pending_items or _is_submitted(record, state, situation)) and (
        pause := blocking.pause_reason(node, situation)
    ):
        return pause
    reason = _running_reason(record, state, task, situation)
    return blocking.limit_reason(node) if reason is None and has_pending_items else reason


def _is_submitted(record: Any, state: str, situation: Situation) -> bool:
    """Return whether a task, not a Map, was submitted, and no worker or slot has started it."""
    return (
        state == states.RUNNING
        and record is not None
        and record.items is None
        and record.started is None
        and (situation.on_workers or situation.in_pool)
    )


def _has_pending_items(record: Any, state: str, situation: Situation) -> bool:
    return (
        situation.is_run
        and state == states.RUNNING
        and record is not None
        and record.items is not None
        and any(item.state == states.PENDING for item in record.items)
    )


def _running_reason(
    record: Any, state: str, task: str | None, situation: Situation
) -> Reason | None:
    if state == states.RUNNING and (wait := wait_of(record)):
        return _wait_reason(wait, situation)
    if not situation.is_run and record is not None and record.meta_value(WORKFLOW) is not None:
        return Reason("Continues behind its complete steps when an engine runs the flow.")
    if not situation.is_run:
        beginning = "Was running" if state == states.RUNNING else "Was being reverted"
        return Reason(
            f"{beginning} when the engine stopped; the next engine determines the result."
        )
    if record is None or record.started is not None or record.progress is not None:
        return None
    if reason := _wait_or_start_reason(record, situation):
        return reason
    if situation.offered is not None and task is not None and task not in situation.offered:
        return Reason(f"No known worker offers {task}.")
    if record.submitted is None or not (situation.on_workers or situation.in_pool):
        return None
    since = situation.now - record.submitted
    if since < _GRACE_SECONDS:
        return None
    ago = f"Sent {_formatting.seconds(since)} ago"
    if not situation.on_workers:
        return Reason(f"{ago}; the pool has no free slot yet.")
    if record.worker is not None:
        return Reason(f"{ago}; its worker has no free slot yet.")
    return Reason(f"{ago}; no worker has started it yet.")


def describe_wait(wait: Waiting, now: float) -> str:
    """Return a text with the signal or child flow, if there is one, and the start and the end.

    :param now: Unix time.
    """
    subjects = {SIGNAL: f"for signal {wait.subject!r}", CHILD: f"for child flow {wait.subject}"}
    parts = [subjects[wait.kind]] if wait.kind in subjects else []
    if wait.since is not None:
        parts.append(f"since {_formatting.clock(wait.since, now)}")
    if wait.until is not None:
        seconds_left = wait.until - now
        remaining = f"in {_formatting.seconds(seconds_left)}" if seconds_left > 0 else "expired"
        parts.append(f"(until {_formatting.clock(wait.until, now)}, {remaining})")
    return " ".join(parts)


def _wait_reason(wait: Waiting, situation: Situation) -> Reason:
    verb = "Sleeping" if wait.kind == SLEEP else "Waiting"
    has_engine = situation.is_run or situation.parked
    is_suspended = situation.state == states.SUSPENDED
    cause = "the flow is suspended" if is_suspended else "no engine runs the flow"
    end = "" if has_engine else f"; {cause}"
    return Reason(f"{verb} {describe_wait(wait, situation.now)}{end}.", wait)


def _retry_reason(name: str, record: Any, situation: Situation) -> Reason | None:
    due = None if record is None else record.meta_value(RETRY_AT)
    if not isinstance(due, int | float):
        if situation.is_run:
            return Reason("Its flow is being reverted before the next attempt.")
        return _common_reason(situation) or Reason("The next attempt is due.")
    when = f"Next attempt at {_formatting.clock(due, situation.now)}"
    seconds_left = due - situation.now
    if not (situation.is_run or situation.parked):
        text = f"{when}, when an engine runs the flow."
    elif seconds_left > 0:
        text = f"{when}, in {_formatting.seconds(seconds_left)}."
    else:
        text = f"{when} (due)."
    return Reason(text, Waiting(RETRY, name, record.ended, due))


def _revert_reason(
    node: int, record: Any, blocking: Blocking, situation: Situation
) -> Reason | None:
    if record is None or record.intention not in (states.REVERT, states.RETRY):
        return None
    if situation.state in states.FLOW_ENDED:
        return None
    if blockers := blocking.after(node):
        return Reason(f"Will be reverted after {blocking.describe(blockers)}.")
    return _common_reason(situation) or Reason("Will be reverted next.")


def _common_reason(situation: Situation) -> Reason | None:
    """Return why no atom of the flow can start, if one reason applies to all of them."""
    if situation.missing_code is not None:
        return Reason(
            f"The flow waits for {_codes.waits_text(situation.missing_code)}: no conductor has it."
        )
    if situation.requested:
        who = (
            f"{_codes.NO_CONDUCTOR.capitalize()}: the next one"
            if situation.unserved
            else "A conductor"
        )
        return Reason(f"{who} carries the request out.")
    if situation.queue_pause is not None:
        pause = situation.queue_pause
        subject = "All queues are" if pause.name == "*" else f"Its queue {pause.name!r} is"
        return Reason(_pause_text(f"{subject} paused", pause, situation.now))
    if situation.state in states.FLOW_ENDED or situation.parked:
        return None
    if situation.difference is not None:
        return Reason(f"The flow is blocked by code: {situation.difference}.")
    if situation.state == states.SUSPENDED:
        reason = f" ({situation.suspended})" if situation.suspended else ""
        return Reason(f"The flow is suspended{reason}.")
    if situation.died:
        return Reason(f"No engine runs the flow: its owner, {situation.owner}, died.")
    if situation.owner is None:
        if situation.unserved:
            return Reason(f"{_codes.NO_CONDUCTOR.capitalize()}: the next one runs the flow.")
        if situation.state == states.PENDING:
            return Reason("No engine has run the flow yet.")
        return Reason("No engine runs the flow: its lease has ended.")
    if situation.state == states.SUSPENDING:
        return Reason("The flow is being suspended: no more tasks start.")
    return None


def _cancel_reason(situation: Situation, running: Sequence[Any]) -> str:
    if not situation.is_run:
        return "The flow was cancelled: the next engine reverts it."
    count = sum(atom.state == states.RUNNING for atom in running)
    if not count:
        return "The flow is being cancelled: its tasks are being reverted."
    verb = "is" if count == 1 else "are"
    return f"The flow is being cancelled: {_formatting.count(count, 'task')} {verb} still running."


def _next_waits(running: Sequence[Any], now: float) -> str:
    """Return a sentence about the wait with which a flow continues, or ""."""
    waits = [
        (atom.name, atom.gate)
        for atom in running
        if atom.gate is not None and atom.gate.kind in (SIGNAL, SLEEP, CHILD)
    ]
    if not waits:
        return ""
    name, wait = waits[0]
    verb = "sleeps" if wait.kind == SLEEP else "waits"
    text = describe_wait(wait._replace(since=None), now)
    others = f", and {len(waits) - 1:,} more wait" if len(waits) > 1 else ""
    return f" When it continues, {name} {verb} {text}".rstrip() + f"{others}."


def flow_reason(
    situation: Situation,
    running: Sequence[Any],
    retrying: Sequence[tuple[str, str]],
    limited: Sequence[tuple[str, str]] = (),
) -> str | None:
    """Return why a flow makes no progress; None if it progresses or has ended.

    :param running: views of running atoms.
    :param retrying: names and reasons of retry controllers, and of tasks with retries, that wait
        for their next attempt.
    :param limited: names and reasons of tasks that wait for their limits or are paused.
    """
    if situation.state in states.FLOW_ENDED and not situation.requested:
        return None
    common_reason = _common_reason(situation)
    if situation.cancelling:
        return _cancel_reason(situation, running)
    if situation.state == states.SUSPENDING:
        task_count = _formatting.count(len(running), "task")
        verb = "is" if len(running) == 1 else "are"
        return f"The flow is being suspended: {task_count} {verb} still running."
    if common_reason is not None:
        return f"{common_reason.text}{_next_waits(running, situation.now)}"
    waiting_atoms = [atom for atom in running if atom.waiting]
    if running and len(waiting_atoms) == len(running):
        first = min(waiting_atoms, key=lambda atom: atom.submitted or situation.now)
        if len(waiting_atoms) == 1:
            return f"{first.name}: {first.waiting}"
        number = _formatting.count(len(waiting_atoms), "running task")
        return f"{number}; {first.name}: {first.waiting}"
    for group in (limited, retrying):
        if not running and group:
            name, reason = group[0]
            suffix = f" ({len(group) - 1:,} more are waiting)" if len(group) > 1 else ""
            return f"{name}: {reason}{suffix}"
    return None
