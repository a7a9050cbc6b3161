"""Begin and finish steps of workflows: their records and calls."""

from __future__ import annotations

import datetime as dt
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions, retry, states
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine._calls import invocation as calls
from wbengine._runtime import retry_controllers, retry_delays, stored_starts, task_retries
from wbengine._runtime.gates import signals_and_sleeps
from wbengine._runtime.interrupted import has_lost_worker, is_refusal
from wbengine._runtime.workflow_call import (
    WorkflowCall,
    latest_execution,
    number_continued_attempt,
)
from wbengine._runtime.workflows.continuations import Continuation
from wbengine._runtime.workflows.history import RecordedStep
from wbengine._runtime.workflows.step import Step
from wbengine._security import keys
from wbengine._tasks import step_limits
from wbengine._tasks.child import Child
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine._text import durations
from wbengine.persistence import _macs, models
from wbengine.persistence._step_notes import StepNote
from wbengine.persistence._stored_results import StoredResult
from wbengine.types import _tags
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._runtime import atom_lifecycle

__all__ = ["StepRecords", "calls_revert"]

#: Results of these types, and strings up to this length, stay in memory.
_SMALL_TYPES: Final = frozenset({type(None), bool, int, float, StoredResult})
_MAX_SMALL_LENGTH: Final = 1000

_BEGUN: Final = {calls.EXECUTE: states.RUNNING, calls.REVERT: states.REVERTING}


class StepRecords:
    """Begins and finishes steps, as `AtomLifecycle` does with atoms of the plan."""

    def __init__(
        self,
        storage: storage_module.Storage,
        lifecycle: atom_lifecycle.AtomLifecycle,
    ) -> None:
        self._storage = storage
        self._lifecycle = lifecycle
        # By uuid and attempt of the workflow; read when the first workflow begins.
        self._recorded: defaultdict[tuple[str, int], list[RecordedStep]] | None = None

    @functools.cached_property
    def _keyring(self) -> keys.Keyring | None:
        return keys.keyring(None)

    def recorded(self, workflow: str, attempt: int) -> list[RecordedStep]:
        """Return the steps of an attempt of a workflow.

        :raises CorruptRecord: if the record of any step is missing, or its note is damaged: the
            step would be repeated, and not reverted.
        :raises NotTrusted: if there are keys, and the note of any step has no valid MAC.
        """
        if self._recorded is None:
            recorded = defaultdict(list)
            for record in self._storage.flow_detail:
                if record.is_step:
                    step = _recorded_step(record)
                    if self._keyring is not None:
                        _macs.check_step(self._storage.flow_uuid, record, self._keyring)
                    recorded[step.note.workflow, step.note.attempt].append(step)
            for steps in recorded.values():
                _check_complete(steps)
            self._recorded = recorded
        return self._recorded[workflow, attempt]

    def check_tags(self, tags: Mapping[str, Any]) -> dict[str, _tags.Value]:
        """Return the tags of a workflow in their stored form.

        :raises TypeError, ValueError: if one is invalid, or was set by the submission.
        """
        checked = _tags.check(tags)
        _tags.check_settable(self._storage.flow_detail.own_meta, checked)
        return checked

    def set_tags(self, tags: Mapping[str, Any], workflow: str) -> None:
        """Set tags of the flow, with the next write of the run."""
        self._storage.writer.set_tags(tags, f"workflow {workflow!r}")

    @property
    def values(self) -> storage_module.Storage:
        """The storage that loads and stores large values."""
        return self._storage

    def kept_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a step with references in place of large parts."""
        if self._storage.large_values is None:
            return dict(arguments)
        return self._storage.kept_each(arguments, "arguments")

    def add(self, step: Step) -> None:
        """Add the record of a new step."""
        record = step.record
        record.state = states.PENDING
        if step.task is not None:
            record.version = step.task.version_string
            step.note.limit = _limit_text(step.task)
        self._store_note(step)
        steps = self.recorded(step.note.workflow, step.note.attempt)
        steps.append(RecordedStep(record, step.note))
        self._storage.add_step(record)
        if self._storage.code is not None:
            self._storage.note_code()

    def begin(self, step: Step, action: calls.Action, node: int, now: float) -> calls.Invocation:
        """Enter RUNNING or REVERTING, and return the call.

        :param node: node of the workflow.
        :param now: Unix seconds.
        """
        task, record, lifecycle = step.task, step.record, self._lifecycle
        assert task is not None
        has_start = task.eta is not None or record.attempt > 0
        was_waiting = task.is_wait or (has_start and stored_starts.is_waiting(record, now))
        began_before = record.state == _BEGUN[action] and not was_waiting
        lost_worker = record.worker
        is_resumed = lifecycle.begin_attempt(record, task, action, now)
        may_have_run = began_before and not is_resumed
        step.may_have_run = may_have_run and action == calls.EXECUTE
        runs_again = may_have_run and stored_starts.has_passed(record, now)
        if action == calls.EXECUTE and has_start:
            if task.eta is not None:
                stored_starts.store_start(record, task, now)
            if (start := stored_starts.start_of(record)) is not None:
                # It may be that of an earlier run, or a delay before a retry.
                task.eta = dt.datetime.fromtimestamp(start, dt.UTC)
        if type(task) is Child and record.meta_value(models.CHILD) is None:
            record.meta[models.CHILD] = calls.request_id(record.uuid, "child", record.attempt)
        if task.is_wait and isinstance(task, WaitingTask):
            signals_and_sleeps.begin_wait(record, task, now)
        lifecycle.enter(record, task, action)
        if self._storage.code is not None and not task.is_wait:  # `add` has noted a wait.
            self._storage.note_code()
        if runs_again:
            lifecycle.note_resend(record, lost_worker)
        arguments = step.arguments if action == calls.EXECUTE else step.note.arguments
        call = calls.Invocation(task, action, record.uuid, record.attempt, arguments or {})
        if action == calls.EXECUTE and arguments is None:
            call.cancellation.cancel()
        call.node, call.step, call.priority = node, step, task.priority
        call.flow_uuid, call.settled = self._storage.flow_uuid, record.settled
        call.repeats = record.repeats if record.past else 0
        lifecycle.prepare_call(call, record, task)
        if is_resumed:
            call.recovered, call.lost, call.epoch = True, has_lost_worker(record), record.epoch
        if action == calls.REVERT:
            call.result = record.failure if record.failure is not None else record.results
        return call

    def finish(self, step: Step, call: calls.Invocation, outcome: calls.Outcome) -> str:
        """Store an outcome; return the new state. A reverted step keeps its result."""
        result = step.record.held_results
        state = self._lifecycle.finish(call, outcome, step.record)
        step.may_have_run = False
        if state == states.REVERTED:
            step.record.held_results = result
        return state

    def finish_without_call(self, step: Step, state: str, value: object = None) -> None:
        """Store the outcome of a step, or of its reversion, without a call."""
        result = step.record.held_results
        self._lifecycle.change_state(step.record, step.task, state, value)
        if state == states.REVERTED:
            step.record.held_results = result

    def undo_begin(self, step: Step) -> None:
        """Undo `begin` for a call that did not start."""
        self._lifecycle.undo_record(step.record, step.task)

    def never_began(self, call: calls.Invocation, outcome: calls.Outcome) -> bool:
        """Return whether an execution was refused before it began, in all runs."""
        return (
            outcome.started is None
            and call.action == calls.EXECUTE
            and is_refusal(outcome.value)
            and not self._lifecycle.may_have_run(call)
        )

    def complete(self, step: Step) -> None:
        """Write the record of a complete step, and keep its result only in the store."""
        self.save_note(step)
        writer = self._storage.writer
        if writer.encodes and not _is_small(step.record.held_results):
            writer.release_result(step.record, is_marked=True)

    def on_delivered(self, record: models.TaskDetail) -> None:
        """Keep the result of a step only in the store after the function has received it."""
        writer = self._storage.writer
        if writer.encodes and not _is_small(record.held_results):
            writer.release_result(record, is_marked=False)

    def save_note(self, step: Step) -> None:
        """Write the record of a step, with its note, with the next changes."""
        self._store_note(step)
        self._storage.writer.mark(step.record)

    def _store_note(self, step: Step) -> None:
        content, flow = step.note.to_dict(), self._storage.flow_uuid
        if self._keyring is not None:
            content = _macs.signed_step(flow, step.record, content, self._keyring)
        step.record.set_meta_value(models.STEP, content)

    def continue_as_new(
        self, call: WorkflowCall, continuation: Continuation, now: float
    ) -> WorkflowCall:
        """Begin the next attempt of a workflow, and delete the steps of the current one.

        The next write contains all of this.

        :param now: Unix seconds.
        :returns: the call of the next attempt.
        """
        record = call.record
        for step in self.recorded(record.uuid, latest_execution(record)):
            self._storage.drop_step(step.record)
        assert self._recorded is not None
        del self._recorded[record.uuid, latest_execution(record)]
        earlier = record.meta_value(models.CONTINUED) or {}
        inputs = {**earlier.get("inputs", {}), **self.kept_arguments(continuation.inputs)}
        number_continued_attempt(record, now)
        content = {
            "number": earlier.get("number", 0) + 1,
            "attempt": record.attempt,
            "at": now,
            "inputs": inputs,
            "signals": dict(continuation.signals),
        }
        record.meta[models.CONTINUED] = _macs.signed_continuation(
            self._storage.flow_uuid, record, content
        )
        self.mark(record)
        return call._replace(arguments={**call.arguments, **continuation.inputs})

    def mark(self, workflow: models.AtomDetail) -> None:
        """Write the record of a workflow with the next changes."""
        self._storage.writer.mark(workflow)

    def may_be_under_way(self, step: Step) -> bool:
        """Return whether the executor may know the result of an unfinished execution."""
        return step.task is not None and self._lifecycle.may_be_under_way(step.task)

    def add_failure(self, step: Step, failure: ft.Failure, now: float) -> float | None:
        """Count a failure; return the seconds until the retry of the step, or None without one.

        :param now: Unix seconds.
        """
        task = step.task
        if task is None or not task_retries.is_retried(task):
            return None
        step.note.failures += 1
        if step.note.first_start is None and task.retry_for is not None:
            step.note.first_start = retry_controllers.latest_start(step.record, now)
        controller = task_retries.controller_of(task)
        history = _history(step, failure, now)
        if controller.on_failure(history) != retry.RETRY:
            return None
        return controller.wait(history)

    def is_too_late(self, step: Step, now: float) -> bool:
        """Return whether the `retry_for` of a step passed before its retry started."""
        task, failure = step.task, step.record.failure
        if task is None or failure is None or not step.note.failures or task.retry_for is None:
            return False
        elapsed = now - (step.note.first_start or now)
        return elapsed > durations.seconds_of(task.retry_for)

    def store_retry(self, step: Step, delay: float, now: float) -> None:
        """Store the earliest start of the next execution.

        :param delay: seconds until the retry; 0: the next execution waits for its `eta` again.
        :param now: Unix seconds.
        """
        retry_delays.clear(step.record)
        if delay:
            step.record.meta[models.STARTS_AT] = now + delay
        self.save_note(step)


def _recorded_step(record: models.AtomDetail) -> RecordedStep:
    note = StepNote.of(record)
    if note is None or not isinstance(record, models.TaskDetail):
        raise exceptions.CorruptRecord(
            f"Record of step {record.name!r} must contain its place in the workflow,"
            f" got {record.meta_value(models.STEP)!r:.80}"
        )
    return RecordedStep(record, note)


def _history(step: Step, failure: ft.Failure, now: float) -> retry.History:
    # Earlier failures are not stored. The controller uses only their number.
    note = step.note
    elapsed = max(0.0, now - (note.first_start or now))
    outcomes = {step.record.name: failure}
    return retry.History([(None, outcomes)], elapsed=elapsed, dropped=note.failures - 1)


def _limit_text(task: task_module.Task) -> str | None:
    try:
        limit = step_limits.limit_of(task)
    except (TypeError, ValueError):  # The step fails when it asks for a permit.
        return None
    return None if limit is None else limit.quota.label


def _check_complete(steps: Iterable[RecordedStep]) -> None:
    """Check that no step is missing. The latest ones cannot be checked.

    :raises CorruptRecord: if one is missing.
    """
    notes = [step.note for step in steps]
    positions = sorted(note.position for note in notes)
    completions = sorted(note.completed for note in notes if note.completed is not None)
    for numbers, first, name in (positions, 0, "position"), (completions, 1, "completion"):
        if numbers != [*range(first, first + len(numbers))]:
            raise exceptions.CorruptRecord(
                f"The steps of workflow record {notes[0].workflow}, attempt {notes[0].attempt},"
                f" must have each {name} from {first} to {numbers[-1]} once: the record of a step"
                " is missing or damaged"
            )


def _is_small(value: Any) -> bool:
    """Return whether a result, or a `StoredResult`, takes so little memory that it may stay."""
    return type(value) in _SMALL_TYPES or (type(value) is str and len(value) <= _MAX_SMALL_LENGTH)


def calls_revert(step: Step) -> bool:
    """Return True if a reversion of this step calls `revert`, or cannot find its task."""
    if step.note.arguments is None:
        return False
    return step.task is None or calls.calls_revert(step.task, step.record.failure)
