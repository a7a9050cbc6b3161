"""Views of flows: state, reason for waiting, failures and reverted atoms."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine._text import timestamps
from wbengine.persistence import (
    _changes,
    _codes,
    _leases,
    _owners,
    _step_notes,
    base,
    models,
)
from wbengine.persistence._commands import FlowCommand
from wbengine.persistence._history import MAX_CHANGES, why_suspended
from wbengine.persistence._listing import fair_key_of, queue_of
from wbengine.persistence._pauses import QueuePause, TaskPause
from wbengine.persistence._published_values import published_in
from wbengine.running import LOCAL
from wbengine.types import _outline as outlines
from wbengine.types import _tags, codec
from wbengine.views import _formatting, _record_values, _structure, redaction
from wbengine.views import _waiting as waiting
from wbengine.views._atoms import (
    PAUSE,
    PERMIT,
    AtomView,
    FailureView,
    Reason,
    StepsView,
    Undone,
    Waiting,
    WaitView,
    failures_of,
    revert_path,
)
from wbengine.views._record_views import RecordViews
from wbengine.views._shown_states import (
    INTERRUPTED,
    OF_RETRY,
    REQUESTED,
    STATES_WITHOUT_RUN,
    shown_state,
)
from wbengine.views._structure import NodeView, build_tree
from wbengine.views._waiting import Situation
from wbengine.views.redaction import Redactor

if TYPE_CHECKING:
    from wbengine.persistence import _result_users

__all__ = [
    "AtomView",
    "FailureView",
    "FlowViewBuilder",
    "ChangeView",
    "FlowRecords",
    "FlowView",
    "SCHEMA",
    "Undone",
    "on_workers",
    "read",
    "view",
]

_WORKER_ENGINES: Final = frozenset({"workers", "worker-based"})
#: Kinds of engines whose tasks wait for a slot of a pool in the engine's process.
_POOL_ENGINES: Final = frozenset({"parallel"})

_DONE: Final = frozenset({states.SUCCESS, states.IGNORE})
_REVERT_RESULTS: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})
_RUNNING_STATES: Final = frozenset({states.RUNNING, states.REVERTING})


class FlowViewBuilder:
    """Common data of all parts of the view of one flow."""

    def __init__(
        self,
        detail: models.FlowDetail,
        outline: outlines.Outline | None,
        redactor: Redactor,
        *,
        now: float,
        owner: str | None,
        died: bool,
        offered: Collection[str] | None,
        command: str | None,
        pauses: Sequence[TaskPause],
        missing_code: str | None = None,
        unserved: bool = False,
        queue_pause: QueuePause | None = None,
    ) -> None:
        self._detail = detail
        self.state = detail.state or states.PENDING
        records = [
            atom
            for atom in detail
            if atom.name != models.INJECTOR
            and atom.meta_value(models.OF_TASK) is None
            and not atom.is_step
        ]
        #: Task name -> retry controller that was created for `Task.retries`.
        retries_by_task = {
            task: atom for atom in detail if (task := atom.meta_value(models.OF_TASK)) is not None
        }
        self._inputs: Mapping[str, Any] = next(
            (atom.results or {} for atom in detail if atom.name == models.INJECTOR), {}
        )
        self.redactor = redactor
        by_name = {record.name: record for record in records}
        if outline is None:
            outline = _structure.outline_of(detail, records)
        else:
            outlined_names = {node.name for node in outline.nodes if node.kind != outlines.FLOW}
            outline = _structure.with_others(
                outline, (record for record in records if record.name not in outlined_names)
            )
        self._parts = RecordViews(self.redactor)
        self._records: list[models.AtomDetail | None] = [
            None if node.kind == outlines.FLOW else by_name.get(node.name) for node in outline.nodes
        ]
        self._retry_records = [retries_by_task.get(node.name) for node in outline.nodes]
        self.outline = _masked_outline(outline, self.redactor)
        self._structure = _structure.Structure(self.outline)
        self.counts = Counter(self._state(node) for node in self._structure.tasks())
        displayed_state = shown_state(
            self.state,
            owner,
            died,
            cancelled=detail.is_cancelled,
            command=command,
            parked=detail.is_parked,
        )
        self.situation = waiting.Situation(
            self.state,
            now,
            owner,
            died,
            self._suspend_reason(),
            offered,
            on_workers(detail),
            displayed_state == states.CANCELLING,
            detail.is_parked,
            in_pool=_engine_kind(detail) in _POOL_ENGINES,
            pauses=tuple(pauses),
            difference=self._difference(),
            missing_code=missing_code,
            unserved=unserved,
            requested=displayed_state == REQUESTED,
            queue_pause=queue_pause,
        )
        #: By the uuid of the workflow: its steps, the step that it waits for, and the one that
        #: raised its exception.
        self._steps: Mapping[str, StepsView] = {}
        self._waiting_steps: Mapping[str, models.AtomDetail] = {}
        self._failed_steps: Mapping[str, models.AtomDetail] = {}
        self._step_records = [atom for atom in detail if atom.is_step]
        if self._step_records:
            from wbengine.views import _steps as steps  # most flows have no workflow

            self._steps = steps.steps_of(detail, self.redactor, self.situation)
            self._failed_steps = _step_notes.failed_steps(self._step_records, detail)
            if self.state not in states.FLOW_ENDED:
                self._waiting_steps = steps.waiting_steps(self._step_records)

    def _state(self, node: int) -> str:
        record = self._state_record(node)
        return (record.state if record is not None else None) or states.PENDING

    def _state_record(self, node: int) -> models.AtomDetail | None:
        """Return the record of the node, or of its retry controller if that retries or failed."""
        retry = self._retry_records[node]
        if retry is not None and (retry.state in OF_RETRY or retry.failure is not None):
            return retry
        return self._records[node]

    def _reason_record(self, node: int) -> models.AtomDetail | None:
        """Return the record of the node, or of the step that this workflow waits for."""
        record = self._records[node]
        step = None if record is None else self._waiting_steps.get(record.uuid)
        return self._state_record(node) if step is None else step

    def _reason_of_steps(self, node: int) -> Reason | None:
        """Return why the steps of a workflow do not start, unless they wait for signals or times.

        See `_reason_record` for these.
        """
        record = self._records[node]
        steps = None if record is None else self._steps.get(record.uuid)
        reason = None if steps is None else steps.reason
        if reason is None or reason.gate is None or reason.gate.kind not in (PERMIT, PAUSE):
            return None
        return reason

    def _difference(self) -> str | None:
        difference = self._detail.difference
        return None if difference is None else self.redactor.text(difference)

    def _suspend_reason(self) -> str | None:
        reason = why_suspended(self._detail.history)
        return None if reason is None else self.redactor.text(reason)

    @property
    def progress(self) -> float:
        """Completed fraction of the flow, from 0.0 to 1.0."""
        if self.state == states.SUCCESS:
            return 1.0
        total = sum(self.counts.values())
        if not total:
            return 0.0
        done = float(sum(self.counts[state] for state in _DONE))
        for record in self._records:
            if record is not None and record.state == states.RUNNING:
                done += min(max(record.progress or 0.0, 0.0), 1.0)
        return min(1.0, done / total)

    def values(self) -> dict[str, Any]:
        """Return the inputs of the flow, masked."""
        names = sorted(self._inputs, key=str)
        return {
            self.redactor.text(str(name)): self.redactor.value(self._inputs[name], name)
            for name in names
        }

    def published(self) -> dict[str, Any]:
        """Return the values that workflows published. They are shown even if others are hidden."""
        workflows = [
            record
            for record in self._records
            if record is not None and record.meta_value(models.WORKFLOW) is not None
        ]
        if not workflows:
            return {}
        redactor = self.redactor.showing_values()
        return {
            redactor.text(name): redactor.value(value, name)
            for name, value in published_in(workflows).items()
        }

    def atoms(self) -> tuple[AtomView, ...]:
        """Return the views of all atoms in the order of the outline."""
        blocking = waiting.Blocking(self._structure, self._state)
        situation, views = self.situation, []
        nodes, paths, states_without_reason = (
            self.outline.nodes,
            self._structure.paths,
            self._states_without_reason(),
        )
        records = self._records
        for node in self._structure.atoms():
            record, state = records[node], self._state(node)
            name, kind, _, task, *_ = nodes[node]
            reason = None
            if state not in states_without_reason:
                reason = self._reason_of_steps(node) or waiting.atom_reason(
                    node, self._reason_record(node), state, task, blocking, situation
                )
            text, gate = (None, None) if reason is None else self._masked_reason(reason)
            if record is None or (not record.attempt and state == states.PENDING):
                uuid = None if record is None else record.uuid
                view = AtomView(node, uuid, name, kind, paths[node], task, waiting=text, gate=gate)
            else:
                view = self._atom_view(
                    node, record, state, name, kind, paths[node], task, text, gate
                )
            views.append(view)
        return tuple(views)

    def _masked_reason(self, reason: Reason) -> Reason:
        gate = reason.gate
        if gate is None:
            return reason
        subject = self.redactor.text(gate.subject)
        return Reason(self.redactor.text(reason.text), gate._replace(subject=subject))

    def _states_without_reason(self) -> Collection[str]:
        if self.state == states.SUCCESS:
            return (states.SUCCESS, states.REVERTED, states.REVERT_FAILURE)
        return _REVERT_RESULTS

    def _atom_view(
        self,
        node: int,
        record: models.AtomDetail,
        state: str,
        name: str,
        kind: str,
        path: tuple[str, ...],
        task: str | None,
        reason: str | None,
        gate: Waiting | None,
    ) -> AtomView:
        return AtomView(
            node,
            record.uuid,
            name,
            outlines.MAP if record.items is not None else kind,
            path,
            task,
            state,
            record.intention,
            record.attempt,
            record.action,
            self._parts.text(record.worker),
            record.submitted,
            record.started,
            record.ended,
            _progress(record, state),
            self._parts.attempts(record),
            record.attempts_dropped,
            record.executions,
            record.reversions,
            self._failure(record, name) or self._failure_of_retry(node, name),
            self._parts.revert_failure(record, name),
            self._parts.result(record, state),
            None if record.items is None else Counter(item.state for item in record.items),
            reason,
            self._is_queued(record, state),
            self._parts.items(record, state),
            self._parts.incidents(record),
            self._waits_for(record, state),
            gate,
            self._steps.get(record.uuid),
            record.inherited_from,
        )

    def _waits_for(self, record: models.AtomDetail, state: str) -> WaitView | None:
        wait, situation = self._waiting_steps.get(record.uuid, record).waits_for, self.situation
        if wait is None or not (situation.parked or (situation.is_run and state == states.RUNNING)):
            return None
        text = self.redactor.text
        return WaitView(text(record.name), text(wait.signal), wait.since, wait.until, wait.number)

    def _is_queued(self, record: models.AtomDetail, state: str) -> bool:
        situation = self.situation
        if (
            state not in _RUNNING_STATES
            or record.items is not None
            or not (situation.on_workers or situation.in_pool)
        ):
            return False
        if record.meta_value(waiting.WAITS_FOR) is not None:
            return False
        if waiting.start_of(record, situation.now) is not None:
            return False
        return situation.is_run and record.started is None and record.progress is None

    def _failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        """Return the failure of an atom; for a workflow, with the step that raised it."""
        failure, step = self._parts.failure(record, name), self._failed_steps.get(record.uuid)
        if failure is None or step is None:
            return failure
        view = self._parts.failure(step, step.name)
        return dataclasses.replace(
            failure,
            step=step.uuid,
            step_name=self._parts.text(step.name),
            step_attempt=0 if view is None else view.attempt,
        )

    def undone_steps(self) -> Iterator[Undone]:
        """Yield the stored reversions of the steps of workflows."""
        for record in self._step_records:
            yield from self._parts.reversions(record)

    def step_counts(self) -> Counter[str]:
        """Return the number of steps by state, in the latest attempt of each workflow."""
        return _structure.sum_counts(steps.counts for steps in self._steps.values())

    def _failure_of_retry(self, node: int, name: str) -> FailureView | None:
        retry = self._retry_records[node]
        return None if retry is None else self._parts.failure(retry, name)

    def waiting_reason(self, atoms: Sequence[AtomView]) -> str | None:
        """Return why the flow makes no progress; None if it progresses or has ended."""
        if self.state in states.FLOW_ENDED and not self.situation.requested:
            return None
        running = [atom for atom in atoms if atom.state in _RUNNING_STATES]
        situation = self.situation
        if situation.parked:
            waiting_names = {
                record.name
                for record in self._records
                if record is not None
                and (
                    record.meta_value(waiting.WAITS_FOR)
                    or record.uuid in self._waiting_steps
                    or waiting.start_of(record, situation.now, parked=True) is not None
                )
            }
            running = [atom for atom in atoms if atom.name in waiting_names]
        retrying = [
            (f"Retry {atom.name}" if atom.kind == outlines.RETRY else atom.name, atom.waiting)
            for atom in atoms
            if atom.state == states.RETRYING and atom.waiting
        ]
        nodes = self.outline.nodes
        limited = [
            (atom.name, atom.waiting)
            for atom in atoms
            if atom.state == states.PENDING
            and atom.waiting
            and atom.gate is not None
            and atom.gate.kind in (PERMIT, PAUSE)
        ]
        limit_of_flow = waiting.flow_limit_text(nodes[0])
        if limit_of_flow is not None and any(atom.waiting == limit_of_flow for atom in atoms):
            limited = [(nodes[0].name, limit_of_flow)]
        return waiting.flow_reason(self.situation, running, retrying, limited)


def on_workers(detail: models.FlowDetail) -> bool:
    """Return whether workers run the tasks of a flow, according to its records."""
    engine_kind = _engine_kind(detail)
    if engine_kind is not None:
        return engine_kind in _WORKER_ENGINES
    return any(atom.worker not in (None, LOCAL) for atom in detail)


def _engine_kind(detail: models.FlowDetail) -> str | None:
    return detail.meta.get(models.ENGINE) if detail.has_meta else None


def _masked_outline(outline: outlines.Outline, redactor: Redactor) -> outlines.Outline:
    nodes = outline.nodes
    names = redactor.texts([node.name for node in nodes])
    notes = redactor.texts([node.notes or "" for node in nodes])
    if all(map(_is_unchanged, nodes, names, notes)):
        return outline
    return outlines.Outline(
        tuple(
            node._replace(name=name, notes=note or None)
            for node, name, note in zip(nodes, names, notes, strict=True)
        ),
        outline.edges,
    )


def _is_unchanged(node: outlines.OutlineNode, name: str, note: str) -> bool:
    return node.name == name and (node.notes or "") == note


def _progress(record: models.AtomDetail, state: str) -> float | None:
    if state in _REVERT_RESULTS:
        return None  # The progress was reported by the reversion.
    if record.progress is not None:
        return min(max(float(record.progress), 0.0), 1.0)
    if state == states.SUCCESS:
        return 1.0
    items = record.items
    if items is not None and len(items):
        return sum(item.state in _DONE for item in items) / len(items)
    return None


SCHEMA: Final = "wbengine/flow/1"
_COMPUTED_FIELDS: Final = ("shown_state", "total", "queued", "waits_for", "error")
_FIELDS_NOT_IN_JSON: Final = frozenset(
    {
        *("book_uuid", "book_name", "owner_short", "now", "outline", "command", "parked", "waits"),
        *("blocked", "awaits_conductor", "situation"),
    }
)


@dataclass(frozen=True, slots=True)
class ChangeView:
    """A state change of a flow, with its Unix time and, if given, its reason.

    A change to CANCELLING is the cancellation of the flow.
    """

    state: str
    at: float
    why: str | None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


@dataclass(frozen=True, slots=True)
class ForkView:
    """A flow and its fork: the uuid of the other flow, and the task or step of the fork's start.

    :ivar own: whether the fork reverts the inherited results, instead of the original flow.
    """

    flow: str
    start: str
    own: bool

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


#: Maximum number of tasks that `UndoView.line` names.
_SHOWN_REMAINING: Final = 3


class UndoView(NamedTuple):
    """The reversion of a flow that had succeeded.

    :ivar outcome: "running"; "complete": all effects are undone; "partial": those of irreversible
        tasks remain; "failed": a revert failed, and `wbengine flow revert` continues with it.
    :ivar at: time of the request in Unix seconds.
    :ivar reason: the reason and the sender of the request, or None.
    :ivar remaining: the first names of the irreversible tasks; `remaining_count`: their number.
    """

    outcome: str
    at: float
    reason: str | None
    remaining: tuple[str, ...]
    remaining_count: int

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)

    @property
    def line(self) -> str:
        """The outcome in one line."""
        text = self.outcome
        if self.remaining_count:
            more = self.remaining_count - len(self.remaining[:_SHOWN_REMAINING])
            names = ", ".join(self.remaining[:_SHOWN_REMAINING])
            text += f", irreversible: {names}{f' and {more:,} more' if more else ''}"
        return f"{text} ({self.reason})" if self.reason else text


def _undo(detail: models.FlowDetail, state: str, text: Callable[[str], str]) -> UndoView | None:
    request = detail.meta_value(models.UNDONE)
    if not isinstance(request, Mapping):
        return None
    outcome = detail.undo_outcome(state)
    assert outcome is not None
    reason, names = request["reason"], request["remaining"]
    return UndoView(
        outcome,
        request["at"],
        None if reason is None else text(reason),
        tuple(map(text, names)),
        request["remaining_count"],
    )


@dataclass(frozen=True)
class FlowView:
    """A flow at one moment, with masked secrets.

    Times are Unix time. `owner`, `waiting` and `wish` are texts for display.

    :ivar owner: process that runs the flow, or None.
    :ivar owner_short: host and process id of the owner, or None.
    :ivar owner_died: whether the owner has certainly ended.
    :ivar started: start of the first run, or None.
    :ivar ended: time at which the flow ended or was suspended, or None.
    :ivar duration: seconds in which an engine ran the flow; None if it never started.
    :ivar updated: time of the latest known event.
    :ivar counts: number of tasks by state.
    :ivar progress: completed fraction, from 0.0 to 1.0.
    :ivar waiting: why the flow makes no progress; None if it progresses or has ended.
    :ivar failures: failures of executions, then of reversions, each in order of time.
    :ivar revert_path: reverted atoms in the order of their reversion.
    :ivar wish: the pending `command` with its sender and reason, or None.
    :ivar values: inputs of the flow by name; see `Redactor.value`.
    :ivar cursor: position from which a `FlowWatcher` continues after this view.
    :ivar outline: structure of the flow, for drawing; `atoms` are in its order.
    :ivar command: pending command (one of `commands.COMMANDS`), or None.
    :ivar waits: whether all running tasks wait for signals.
    :ivar blocked: whether its code did not repeat the recorded steps; `waiting` has the difference.
    :ivar queue: the queue of a flow that was submitted to conductors, or None; `fair_key`: its key.
    :ivar awaits_conductor: whether a conductor will continue the suspended flow (not if `blocked`).
    :ivar published: values that workflows published, by name, with masked secrets.
    :ivar step_counts: number of steps by state, in the latest attempt of each workflow.
    :ivar parent: uuid of the parent of a child flow, or None.
    :ivar children: number of child flows by state.
    :ivar forked_from: the flow from which this one was forked, or None.
    :ivar forks: the flows that were forked from this one, oldest first.
    :ivar superseded_by: uuid of the latest fork that owns results of this flow, or None.
    :ivar situation: the state of the flow from which the reasons in `atoms` were derived.
    :ivar undo: the reversion of the flow after it had succeeded, or None.
    :ivar undo_until: time until which the flow, which succeeded, can be undone; None: no limit.
    :ivar used_by: flows that have not ended and use results of the flow, which succeeded.
    """

    uuid: str
    name: str
    book_uuid: str | None
    book_name: str | None
    state: str
    owner: str | None
    owner_short: str | None
    owner_died: bool
    created: float | None
    started: float | None
    ended: float | None
    duration: float | None
    updated: float | None
    now: float
    counts: Mapping[str, int]
    progress: float
    atoms: tuple[AtomView, ...]
    waiting: str | None
    history: tuple[ChangeView, ...]
    failures: tuple[FailureView, ...]
    revert_path: tuple[Undone, ...]
    wish: str | None
    values: Mapping[str, Any]
    cursor: str | None
    outline: outlines.Outline = field(repr=False)
    tags: Mapping[str, redaction.TagValue] = field(default_factory=dict)
    cancelled: bool = False
    command: str | None = None
    parked: bool = False
    waits: bool = False
    blocked: bool = False
    queue: str | None = None
    fair_key: str | None = None
    awaits_conductor: bool = False
    published: Mapping[str, Any] = field(default_factory=dict)
    step_counts: Mapping[str, int] = field(default_factory=dict)
    parent: str | None = None
    children: Mapping[str, int] = field(default_factory=dict)
    forked_from: ForkView | None = None
    forks: tuple[ForkView, ...] = ()
    superseded_by: str | None = None
    situation: Situation | None = field(default=None, repr=False)
    undo: UndoView | None = None
    undo_until: float | None = None
    used_by: tuple[_result_users.User, ...] = ()

    @property
    def undo_text(self) -> str | None:
        """The outcome of the undo in one line, or until when the flow can be undone, or None."""
        if self.undo is not None:
            return self.undo.line
        if self.undo_until is None:
            return None
        verb = "can" if self.now < self.undo_until else "could"
        return f"{verb} be undone until {timestamps.text_of(self.undo_until)}"

    @property
    def total(self) -> int:
        """Number of tasks."""
        return sum(self.counts.values())

    @property
    def is_submitted(self) -> bool:
        """Whether the flow was submitted to conductors."""
        return self.queue is not None

    @property
    def tag_texts(self) -> Mapping[str, str]:
        return _tags.texts_of(self.tags)

    @property
    def finished(self) -> bool:
        """Whether the flow has ended and no engine runs it. A finished flow can be run again."""
        return self.state in states.FLOW_ENDED and self.owner is None

    @property
    def shown_state(self) -> str:
        """The displayed state; see the function `shown_state`."""
        return shown_state(
            self.state,
            self.owner,
            self.owner_died,
            cancelled=self.cancelled,
            command=self.command,
            parked=self.parked,
            waits=self.waits,
            blocked=self.blocked,
        )

    @property
    def waits_for(self) -> tuple[WaitView, ...]:
        """The signals that tasks of the flow wait for."""
        return tuple(atom.waits_for for atom in self.atoms if atom.waits_for is not None)

    @property
    def queued(self) -> int:
        """Number of tasks that are submitted but not started by a worker or slot."""
        return sum(atom.queued for atom in self.atoms)

    @cached_property
    def shown_counts(self) -> Mapping[str, int]:
        """Number of tasks by displayed state (see `AtomView.shown_state`)."""
        counts = Counter(self.counts)
        for atom in self.atoms:
            if atom.shown_state != atom.state and atom.kind != outlines.RETRY:
                counts[atom.state] -= 1
                counts[atom.shown_state] += 1
        return {state: count for state, count in counts.items() if count > 0}

    @cached_property
    def shown_step_counts(self) -> Mapping[str, int]:
        """Number of steps by displayed state, in the latest attempt of each workflow."""
        return _structure.sum_counts(
            atom.steps.shown_counts for atom in self.atoms if atom.steps is not None
        )

    @property
    def has_only_steps(self) -> bool:
        """Whether the flow is one workflow with steps: its own state is that of the flow."""
        return bool(self.step_counts) and self.total == 1

    @property
    def done(self) -> str:
        """The number of complete tasks and steps, such as "5 of 7 steps"."""
        return _formatting.done(self.counts, self.step_counts)

    @property
    def children_text(self) -> str | None:
        """The number of child flows, with those in each state; None if there are none."""
        parts = [f"{count:,} {state}" for state, count in sorted(self.children.items())]
        return ", ".join(parts) or None

    @property
    def error(self) -> str | None:
        """The first of `failures` in one line, or the error that ended the run, or None."""
        if self.failures:
            return self.failures[0].line
        latest = self.history[-1] if self.history else None
        return latest.why if latest is not None and latest.state == states.FAILURE else None

    @property
    def cancel_reason(self) -> str | None:
        """The sender and reason of the cancellation in one line; None if neither is stored."""
        cancellations = (
            change for change in reversed(self.history) if change.state == states.CANCELLING
        )
        return next((change.why for change in cancellations), None) if self.cancelled else None

    @cached_property
    def tree(self) -> NodeView:
        """The flow as a tree of its nested flows and atoms."""
        root = build_tree(self.outline, self.atoms)
        root.state = self.state
        return root

    @cached_property
    def _by_name(self) -> Mapping[str, AtomView]:
        by_name = {atom.name: atom for atom in reversed(self.atoms)}
        by_name.update((atom.uuid, atom) for atom in self.atoms if atom.uuid is not None)
        return by_name

    def atom(self, name: str) -> AtomView | None:
        """Return the atom with this name or uuid, or None."""
        return self._by_name.get(name)

    def to_dict(self, atoms: bool = True) -> dict[str, Any]:
        """Return the view for JSON."""
        omitted_fields = _FIELDS_NOT_IN_JSON if atoms else {*_FIELDS_NOT_IN_JSON, "atoms"}
        return {
            "schema": SCHEMA,
            "book": {"uuid": self.book_uuid, "name": self.book_name},
            "interrupted": self.shown_state == INTERRUPTED,
            **_formatting.as_dict(self, *_COMPUTED_FIELDS, without=omitted_fields),
        }


def read(
    connection: base.Connection,
    uuid: str,
    *,
    redactor: Redactor | None = None,
    now: float | None = None,
    offered: Collection[str] | None = None,
) -> FlowView:
    """Read a flow from the store and return its view.

    :raises NotFound: if the flow does not exist.
    :raises TypeError: if `connection` is a backend.
    """
    if isinstance(connection, base.Backend):
        raise TypeError(
            "connection must be the result of backend.get_connection(), got the backend"
            f" {connection!r}"
        )
    records = FlowRecords(connection, uuid, redactor or Redactor())
    records.read_changes()
    return records.view(now, offered)


class FlowRecords:
    """Records of a flow (read-only), and a redactor with their secrets. Not thread-safe."""

    def __init__(
        self,
        connection: base.Connection,
        uuid: str,
        redactor: Redactor,
        cursor: str | None = None,
    ) -> None:
        self.uuid = uuid
        self.redactor = redactor
        #: Cursor after the latest `read_changes`.
        self.cursor = cursor
        #: The complete flow, or None before it is read.
        self.detail: models.FlowDetail | None = None
        self._connection = connection
        self._outline: outlines.Outline | None = None
        self._outline_epoch = -1
        self._book: tuple[str, str] | None = None

    def read_changes(self) -> _changes.Changes:
        """Read the changes since the previous call, or since the cursor.

        :raises NotFound: if the flow does not exist.
        """
        with codec.unknown_classes_as_text():
            new_changes = self._connection.get_changes(self.uuid, self.cursor)
        self.cursor = new_changes.cursor
        self.redactor = self.redactor.with_secrets_from(
            *_record_values.values_of_changes(new_changes)
        )
        if new_changes.whole or self.detail is not None:
            self.detail = new_changes.put_into(self.detail)
        return new_changes

    def read_all(self) -> models.FlowDetail:
        """Read all records and add their secrets to the redactor. The cursor does not change.

        :raises NotFound: if the flow does not exist.
        """
        with codec.unknown_classes_as_text():
            flow_detail = self._connection.get_changes(self.uuid).put_into(None)
        self.redactor = self.redactor.with_secrets_of_flow(flow_detail)
        return flow_detail

    def view(self, now: float | None = None, offered: Collection[str] | None = None) -> FlowView:
        """Return the view as of the latest `read_changes`. See the function `view` for `offered`.

        :raises NotFound: if the flow does not exist.
        """
        if self.detail is None:
            self.detail = self.read_all()
        detail = self.detail
        if self._outline_epoch != detail.epoch or self._outline is None:
            self._outline = self._connection.get_outline(self.uuid)
            self._outline_epoch = detail.epoch
        if self._book is None:
            with contextlib.suppress(exceptions.NotFound):
                row = self._connection.get_row(self.uuid)
                self._book = row.book_uuid, row.book_name
        # In this order: the conductor that deletes a command has the lease.
        wish = self._connection.commands([self.uuid]).get(self.uuid)
        lease = self._connection.get_lease(self.uuid)
        is_over = detail.state in states.FLOW_ENDED and (wish is None or not wish.reruns_flow)
        codes: Sequence[_codes.Code] | None = None
        queue_pause = None
        if lease is None and detail.is_submitted and not is_over:
            codes = self._connection.codes()
            queue_pause = self._connection.queue_pause(self.uuid)
        is_missing = codes is not None and detail.code and _codes.missing(codes, detail.code)
        return view(
            detail,
            self._outline,
            lease,
            now=time.time() if now is None else now,
            redactor=self.redactor,
            book=self._book,
            wish=wish,
            pauses=() if detail.state in states.FLOW_ENDED else self._connection.pauses(),
            cursor=self.cursor,
            offered=offered,
            knows_secrets=True,
            missing_code=detail.code if is_missing else None,
            unserved=codes is not None and not _codes.is_served(codes),
            queue_pause=queue_pause,
            children=self._count_children(detail),
            used_by=self._users(detail),
        )

    def _count_children(self, detail: models.FlowDetail) -> Mapping[str, int]:
        return self._connection.count_children(self.uuid) if _has_children(detail) else {}

    def _users(self, detail: models.FlowDetail) -> Sequence[_result_users.User]:
        if not (detail.forks or detail.parent or _has_children(detail)):
            return ()
        # Loaded here, because most flows have no users.
        from wbengine.persistence import _result_users

        return _result_users.users(self._connection, detail)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()


def _has_children(detail: models.FlowDetail) -> bool:
    return any(atom.meta_value(models.CHILD) is not None for atom in detail)


def view(
    detail: models.FlowDetail,
    outline: outlines.Outline | None = None,
    lease: _leases.Lease | None = None,
    *,
    now: float,
    redactor: Redactor | None = None,
    book: tuple[str, str] | None = None,
    wish: FlowCommand | None = None,
    cursor: str | None = None,
    offered: Collection[str] | None = None,
    pauses: Sequence[TaskPause] = (),
    missing_code: str | None = None,
    unserved: bool = False,
    queue_pause: QueuePause | None = None,
    children: Mapping[str, int] | None = None,
    used_by: Sequence[_result_users.User] = (),
    knows_secrets: bool = False,
) -> FlowView:
    """Return the view of a flow from its records. Cost: O(atoms + edges).

    :param outline: structure of the flow; without it, the view contains only a list of atoms.
    :param book: uuid and name of the logbook.
    :param offered: names of the tasks that live workers offer; None if unknown.
    :param pauses: the pauses of task types in the store.
    :param missing_code: code for which the flow waits, because no conductor has it; or None.
    :param unserved: whether the flow waits for a conductor, and none runs.
    :param queue_pause: the pause of its queue that holds back the flow, or None.
    :param children: number of child flows by state.
    :param used_by: flows that have not ended and use results of the flow.
    :param knows_secrets: whether `redactor` already masks the secrets of the flow.
    """
    redactor = redactor or Redactor()
    redactor = redactor if knows_secrets else redactor.with_secrets_of_flow(detail)
    owner = None if lease is None else lease.owner
    builder = FlowViewBuilder(
        detail,
        outline,
        redactor,
        now=now,
        owner=None if owner is None else _owners.describe(owner),
        died=owner is not None and _owners.is_dead(owner),
        offered=offered,
        command=None if wish is None else wish.what,
        pauses=pauses,
        missing_code=missing_code,
        unserved=unserved,
        queue_pause=queue_pause,
    )
    atoms = builder.atoms()
    history = tuple(
        ChangeView(
            change.state, change.at, None if change.why is None else redactor.text(change.why)
        )
        for change in detail.history
    )
    note = detail.meta_value(models.SUBMITTED)
    queue, fair_key = queue_of(note), fair_key_of(note)
    started = _started(detail, atoms)
    updated = max(_event_times(detail, atoms), default=None)
    end = now if builder.situation.is_run else updated
    return FlowView(
        uuid=detail.uuid,
        name=redactor.text(detail.name),
        book_uuid=None if book is None else book[0],
        book_name=None if book is None else redactor.text(book[1]),
        state=builder.state,
        owner=None if builder.situation.owner is None else redactor.text(builder.situation.owner),
        owner_short=None if owner is None else redactor.text(_formatting.owner(owner)),
        owner_died=builder.situation.died,
        created=detail.created,
        started=started,
        ended=_ended(detail, atoms, builder.state) if started is not None else None,
        duration=_duration(detail, atoms, started, end),
        updated=updated,
        now=now,
        counts=builder.counts,
        progress=builder.progress,
        atoms=atoms,
        waiting=_reversion_reason(detail, redactor) or builder.waiting_reason(atoms),
        history=history,
        failures=failures_of(atoms),
        revert_path=revert_path(atoms, builder.undone_steps()),
        wish=None if wish is None else redactor.text(wish.describe()),
        values=builder.values(),
        cursor=cursor,
        outline=builder.outline,
        tags=redaction.tags(detail.tags, redactor),
        cancelled=detail.is_cancelled,
        command=None if wish is None else wish.what,
        parked=detail.is_parked,
        waits=bool(detail.waits_for),
        blocked=detail.is_blocked,
        queue=None if queue is None else redactor.text(queue),
        fair_key=None if fair_key is None else redactor.text(fair_key),
        awaits_conductor=detail.is_submitted
        and builder.state == states.SUSPENDED
        and not (detail.is_suspended_by_command or detail.is_blocked),
        published=builder.published(),
        step_counts=builder.step_counts(),
        parent=detail.parent,
        children=children or {},
        forked_from=_fork_view(detail.forked_from, redactor),
        forks=tuple(filter(None, (_fork_view(fork, redactor) for fork in detail.forks))),
        superseded_by=detail.successor,
        situation=builder.situation,
        undo=_undo(detail, builder.state, redactor.text),
        undo_until=detail.undo_until,
        used_by=tuple(user._replace(name=redactor.text(user.name)) for user in used_by),
    )


def _reversion_reason(detail: models.FlowDetail, redactor: Redactor) -> str | None:
    original = detail.forked_from
    if not detail.awaits_reversion or original is None:
        return None
    return redactor.text(f"The fork starts when flow {original['flow']} is reverted.")


def _fork_view(entry: Mapping[str, Any] | None, redactor: Redactor) -> ForkView | None:
    if entry is None:
        return None
    start = redactor.text(str(entry["start"]))
    return ForkView(str(entry["flow"]), start, bool(entry.get("own")))


def _event_times(detail: models.FlowDetail, atoms: Collection[AtomView]) -> Iterator[float]:
    if detail.created is not None:
        yield detail.created
    yield from (change.at for change in detail.history)
    for atom in atoms:
        latest = atom.ended or atom.started or atom.submitted
        if latest is not None:
            yield latest


def _started(detail: models.FlowDetail, atoms: Collection[AtomView]) -> float | None:
    run_starts = [change.at for change in detail.history if change.state == states.RUNNING]
    if run_starts and len(detail.history) < MAX_CHANGES:
        return run_starts[0]
    # The first state changes were dropped, or RUNNING was never stored.
    submissions = [
        attempt.submitted for atom in atoms for attempt in atom.attempts if attempt.submitted
    ]
    return min([*submissions, *run_starts[:1]], default=None)


def _duration(
    detail: models.FlowDetail,
    atoms: Collection[AtomView],
    started: float | None,
    end: float | None,
) -> float | None:
    """Return the seconds in which an engine ran the flow, without suspensions and interruptions."""
    if started is None:
        return None
    total, previous_at = 0.0, started
    run_start: float | None = started
    for change in detail.history:
        if change.state in STATES_WITHOUT_RUN:
            total, run_start = total + max(0.0, change.at - (run_start or change.at)), None
        elif run_start is None:
            run_start = change.at
        elif change.state == states.RUNNING and change.at > started:
            # Another engine took over. The previous one did not save a state when it ended.
            times = (
                each.ended or each.started or each.submitted or 0.0
                for atom in atoms
                for each in atom.attempts
            )
            last_event = max((each for each in times if each < change.at), default=run_start)
            total, run_start = total + max(0.0, max(last_event, previous_at) - run_start), change.at
        previous_at = change.at
    return total if run_start is None else total + max(0.0, (end or run_start) - run_start)


def _ended(detail: models.FlowDetail, atoms: Collection[AtomView], state: str) -> float | None:
    if state not in states.FLOW_ENDED and state != states.SUSPENDED:
        return None
    if detail.history and detail.history[-1].state == state:
        return detail.history[-1].at
    return max((atom.ended for atom in atoms if atom.ended is not None), default=None)
