"""One workflow that is in flight: its function, its steps and their reversion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine import exceptions, states
from wbengine._calls import invocation as calls
from wbengine._introspection import object_names
from wbengine._runtime.control import GivenUp, unknown_result
from wbengine._runtime.workflow_call import WorkflowCall
from wbengine._runtime.workflows import guards, programs, step_tasks
from wbengine._runtime.workflows.continuations import Continuation
from wbengine._runtime.workflows.history import History, RecordedStep
from wbengine._runtime.workflows.program import Handle, Program
from wbengine._runtime.workflows.step import Step
from wbengine._runtime.workflows.step_records import StepRecords, calls_revert
from wbengine._tasks import commands
from wbengine._tasks.child import Child
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine.persistence import _step_notes, models
from wbengine.persistence._step_notes import StepNote
from wbengine.running import LOCAL
from wbengine.task import Task
from wbengine.types import failure as ft

__all__ = ["WorkflowRun"]

_TO_REVERT: Final = frozenset(
    {states.SUCCESS, states.FAILURE, states.REVERTING, states.REVERT_FAILURE}
)


class _Reversion:
    """The reversion of complete steps, the latest completion first.

    Steps are reverted one at a time, except child flows that were in progress at the same time.

    :ivar requester: the step that reverts a scope; None: the whole workflow is reverted.
    :ivar steps: the steps whose reversion has not begun.
    :ivar in_progress: the steps whose reversion is to begin or in flight.
    :ivar failure: the first failure of a reversion.
    """

    def __init__(self, requester: Step | None, steps: Iterable[Step]) -> None:
        self.requester = requester
        self.steps = list(steps)
        self.in_progress: set[Step] = set()
        self.failure: Any = None
        #: Whether `steps` contains only complete steps, sorted by completion.
        self.is_ordered = False


class WorkflowRun:
    """An execution or reversion of a workflow.

    :param recorded: the steps of the attempt, or of the execution to revert.
    :param now: returns Unix seconds.
    :param on_waiting: as for `ThreadProgram`.
    :ivar to_begin: steps that may begin now, with the action.
    :ivar outcome: the outcome, after the function and all steps in flight have ended; or None.
    :ivar must_withdraw: whether the run has to withdraw the calls of steps that have not started.
    """

    def __init__(
        self,
        call: WorkflowCall,
        recorded: Iterable[RecordedStep],
        records: StepRecords,
        now: Callable[[], float],
        on_waiting: Callable[[], object],
    ) -> None:
        self.call: Final = call
        self.record: Final = call.record
        self.to_begin: deque[tuple[Step, calls.Action]] = deque()
        self.outcome: calls.Outcome | None = None
        self.must_withdraw = False
        self._records = records
        self._now = now
        self._started = now()
        self._history = History(call.record.name, recorded)
        self._steps: dict[int, Step] = {}
        # Steps that were called and are not complete.
        self._incomplete: set[Step] = set()
        # Steps with a call that has begun and has no outcome.
        self._in_flight: set[Step] = set()
        self._reversions: list[_Reversion] = []
        # Steps whose revert is to begin or in flight. Reverts before a retry are not included.
        self._reverting: dict[Step, _Reversion] = {}
        # The outcome of the function. It becomes `outcome` when no call is in flight.
        self._final_outcome: calls.Outcome | None = None
        self._is_halted = False
        # Changes whose versions this run stored.
        self._new_versions: set[str] = set()
        self._program: Program | None = None
        if call.action == calls.EXECUTE:
            self._program = self._new_program(on_waiting)

    def _new_program(self, on_waiting: Callable[[], object]) -> Program:
        guards.check_code(self.call.task.fn)
        return programs.of_call(
            self.call,
            self._history,
            on_waiting,
            on_read=self._records.on_delivered,
            read_version=self._read_version,
            publish=self._publish,
            tag=self._tag,
            values=self._records.values,
            now=self._started,
        )

    @property
    def in_flight(self) -> int:
        """Number of calls of steps that have begun and have no outcome, or may begin now."""
        return len(self._in_flight) + len(self.to_begin)

    def begin_next(self, now: float) -> calls.Invocation:
        """Begin the next of `to_begin`, and return its call."""
        step, action = self.to_begin.popleft()
        self._in_flight.add(step)
        call = self._records.begin(step, action, self.call.node, now)
        if action == calls.EXECUTE and type(step.task) is Child and self._has_ended:
            call.cancellation.cancel()  # Only the end of a flow that was started is waited for.
        return call

    @property
    def is_computing(self) -> bool:
        return self._program is not None and self._program.is_computing

    @property
    def has_begun(self) -> bool:
        """Whether a step is recorded. A later run then has to continue the attempt."""
        return bool(self._history.steps)

    def advance(self) -> None:
        """Deliver completions to the function, add the steps that it calls, continue reversions.

        :raises NonDeterministicWorkflow: if the function does not repeat its recorded steps.
        :raises StorageFailure: if the result of a step cannot be read.
        """
        program = self._program
        if self._final_outcome is None and program is not None and not self._is_halted:
            if program.can_advance:
                program.advance()
            while not program.is_computing:
                if program.error is not None:
                    if isinstance(program.error, exceptions.NonDeterministicWorkflow):
                        self._forget_new_versions()
                    raise program.error
                for handle in program.take_called():
                    self._add(handle)
                self._continue_reversions()
                if program.is_over:
                    self._end(program.value)
                if not program.can_advance:
                    break
                program.advance()
        elif self._final_outcome is None and not self._is_halted:
            self._continue_reversions()
        if self._final_outcome is not None and not self.in_flight and not self.is_computing:
            self.outcome = self._final_outcome

    def _add(self, handle: Handle) -> None:
        position, command = handle.position, handle.command
        recorded = self._history.steps.get(position)
        if recorded is None:
            name = f"{self.record.name}/{self.record.attempt}.{position}-{command.name}"
            # A run that died may have sent this step without storing its record: the next run finds
            # its request, if the uuid is the same.
            attempt = self.record.attempt
            content = f"{command.path} {command.digest}"
            uuid = calls.request_id(self.record.uuid, content, attempt, position)
            record = models.TaskDetail(name[: object_names.MAX_NAME_LENGTH], uuid)
            revert_arguments: Mapping[str, Any] | None = None
            arguments = self._records.kept_arguments(command.arguments)
            if type(command.task) is Child:
                revert_arguments = None if command.task.is_detached else {}
            elif command.task is not None and not calls.reverts_nothing(type(command.task)):
                revert_arguments = commands.revert_arguments(command.task, arguments)
            note = StepNote(
                self.record.uuid,
                self.record.attempt,
                position,
                command.path,
                command.digest,
                command.text,
                revert_arguments,
                after=handle.after if type(command.task) is Child else None,
            )
            step = Step(record, note, command.task, arguments)
            self._history.steps[position] = RecordedStep(record, note)
            self._records.add(step)
        else:
            step = Step(*recorded, command.task, None)
            if not step.is_complete:
                step.arguments = self._records.kept_arguments(command.arguments)
        self._steps[position] = step
        if step.is_complete:
            return
        self._incomplete.add(step)
        if command.path == commands.REVERT_SCOPE:
            in_scope = [self._steps[each] for each in command.to_revert]
            self._reversions.append(_Reversion(step, in_scope))
            return
        action = self._next_action(step)
        is_retried = bool(step.note.failures) and step.record.state != states.RUNNING
        if action == calls.EXECUTE and is_retried:
            self._execute_again(step)
        else:
            self.to_begin.append((step, action))

    def _next_action(self, step: Step) -> calls.Action:
        """Return the action with which a new step begins, or one of an earlier run continues."""
        state = step.record.state
        if state == states.REVERTING or (state == states.FAILURE and calls_revert(step)):
            return calls.REVERT  # before a retry
        return calls.EXECUTE

    def _restored(self, position: int) -> Step:
        """Return a recorded step, also if the function has not called it in this run."""
        step = self._steps.get(position)
        if step is None:
            record, note = self._history.steps[position]
            step_task: Task | None = None
            if note.task == commands.CHILD_FLOW:
                step_task = Child(is_detached=note.arguments is None)
            else:
                step_task = step_tasks.find(note.task, self.call.task.fn)
            step = self._steps[position] = Step(record, note, step_task, None)
        return step

    def begin_reversion(self) -> None:
        """Revert all steps that are done, or may be."""
        self._settle_all()
        self._reversions.append(_Reversion(None, map(self._restored, self._history.steps)))

    def finish(self, step: Step, call: calls.Invocation, outcome: calls.Outcome) -> None:
        """Store the outcome of a call of a step, and decide what follows."""
        self._in_flight.discard(step)
        if self._has_ended and self._records.never_began(call, outcome):
            self._records.undo_begin(step)
            self._settle(step)
            return
        state = self._records.finish(step, call, outcome)
        reversion = self._stop_reverting(step)
        if reversion is not None:
            # After `give_up`, the reversion of the workflow reverts the step again.
            if state == states.REVERT_FAILURE and reversion.failure is None:
                reversion.failure = outcome.value
        elif state == states.FAILURE:
            self._retry_or_complete(step, outcome)
        elif state == states.REVERTED:
            self._execute_again(step)
        else:
            self._complete(step)

    def _retry_or_complete(self, step: Step, outcome: calls.Outcome) -> None:
        failure = outcome.value
        delay = None
        if not self._has_ended and failure.check(exceptions.Cancelled) is None:
            delay = self._records.add_failure(step, failure, self._now())
        if delay is None:
            self._complete(step)
            return
        self._records.store_retry(step, delay, self._now())
        if calls_revert(step):
            self._queue(step, calls.REVERT)
        else:
            self._execute_again(step)

    def _execute_again(self, step: Step) -> None:
        if self._has_ended or self._records.is_too_late(step, self._now()):
            self._complete(step)
        else:
            self._queue(step, calls.EXECUTE)

    def _queue(self, step: Step, action: calls.Action) -> None:
        # After a halt, a later run continues from the record.
        if not self._is_halted:
            self.to_begin.append((step, action))

    def return_step(self, step: Step, call: calls.Invocation) -> None:
        """Take back a call that did not start. It begins again unless the workflow ends."""
        self._in_flight.discard(step)
        if not (call.recovered or step.may_have_run):
            self._records.undo_begin(step)
        if self._is_halted:
            return
        if self._has_ended and (call.action == calls.EXECUTE or step not in self._reverting):
            self._settle(step)
        else:
            self.to_begin.appendleft((step, call.action))

    def _complete(self, step: Step) -> None:
        self._incomplete.discard(step)
        step.arguments = None
        step.note.completed = self._history.complete(step.position)
        step.note.at = self._now()
        if isinstance(step.task, WaitingTask):
            step.note.signal = step.task.received
            step.note.discarded = step.task.discarded
        if step.record.ended is None:  # nothing ran
            step.record.ended = step.note.at
        self._records.complete(step)

    def _read_version(self, change: str, newest: int, position: int) -> int:
        content = self.record.meta_value(models.WORKFLOW) or {}
        version: int | None = content.get(_step_notes.VERSIONS, {}).get(change)
        if version is None:
            version = 1 if self._history.is_replaying(position) else newest
            self._store(_step_notes.VERSIONS, change, version)
            self._store(_step_notes.VERSION_POSITIONS, change, position)
            self._new_versions.add(change)
        return version

    def _forget_new_versions(self) -> None:
        """Remove the versions that a differing replay stored: no step depends on them."""
        content = self.record.meta_value(models.WORKFLOW)
        if self._new_versions and content is not None:
            without = {
                key: {each: v for each, v in content[key].items() if each not in self._new_versions}
                for key in (_step_notes.VERSIONS, _step_notes.VERSION_POSITIONS)
            }
            self.record.meta[models.WORKFLOW] = {**content, **without}
            self._records.mark(self.record)

    def _publish(self, name: str, value: Any) -> None:
        self._store(models.PUBLISHED, name, value)

    def _tag(self, tags: Mapping[str, Any], is_replaying: bool) -> None:
        # Also in a replay, which must raise the same exceptions.
        checked = self._records.check_tags(tags)
        if not is_replaying:
            self._records.set_tags(checked, self.record.name)

    def _store(self, key: str, name: str, value: Any) -> None:
        """Store a named value under a key of `meta["workflow"]`, with the next write of the run."""
        content = self.record.meta_value(models.WORKFLOW) or {}
        values = {**content.get(key, {}), name: value}
        # New dicts, because another thread may be writing the record.
        self.record.meta[models.WORKFLOW] = {**content, key: values}
        self._records.mark(self.record)

    # Reversion.

    def _continue_reversions(self) -> None:
        for reversion in list(self._reversions):
            self._continue_reversion(reversion)

    def _stop_reverting(self, step: Step) -> _Reversion | None:
        reversion = self._reverting.pop(step, None)
        if reversion is not None:
            reversion.in_progress.discard(step)
        return reversion

    def _continue_reversion(self, reversion: _Reversion) -> None:
        if reversion.in_progress:
            return
        if reversion.failure is not None:
            self._end_reversion(reversion, reversion.failure)
            return
        if not reversion.is_ordered:
            if not self._incomplete.isdisjoint(reversion.steps):
                return
            reversion.steps = [step for step in reversion.steps if step.is_complete]
            reversion.steps.sort(key=lambda step: step.note.completed or 0)
            reversion.is_ordered = True
        while reversion.steps:
            step = reversion.steps.pop()
            if step.record.state not in _TO_REVERT or step.record.has_other_owner:
                continue
            if not calls_revert(step):
                step.note.reverted = self._now()
                self._records.finish_without_call(step, states.REVERTED)
                self._records.save_note(step)
            elif step.task is None:
                failure = _no_task(step)
                self._records.finish_without_call(step, states.REVERT_FAILURE, failure)
                self._end_reversion(reversion, failure)
                return
            else:
                for each in (step, *_take_concurrent(step, reversion.steps)):
                    self._reverting[each] = reversion
                    reversion.in_progress.add(each)
                    self.to_begin.append((each, calls.REVERT))
                return
        self._end_reversion(reversion, None)

    def _end_reversion(self, reversion: _Reversion, value: Any) -> None:
        self._reversions.remove(reversion)
        requester = reversion.requester
        if requester is None:
            self._end(value)
            return
        state = states.SUCCESS if value is None else states.FAILURE
        self._records.finish_without_call(requester, state, value)
        self._complete(requester)

    # The end.

    @property
    def _has_ended(self) -> bool:
        """Whether the function has ended, in this run or an earlier one."""
        return self._final_outcome is not None or self._program is None

    def _end(self, value: Any) -> None:
        self._final_outcome = calls.Outcome(value, LOCAL, self._started, self._now())
        self._settle_all()
        self.must_withdraw = bool(self.in_flight)

    def _settle_all(self) -> None:
        """Settle each step that is neither complete nor in flight."""
        self.to_begin.clear()
        for position, (_, note) in sorted(self._history.steps.items()):
            if note.completed is None and self._steps.get(position) not in self._in_flight:
                self._settle(self._restored(position))

    def _settle(self, step: Step) -> None:
        """Complete a step that may have run, so that it is reverted, and drop any other one.

        If an earlier run left an execution unfinished, its result comes first: from the executor if
        that knows it, otherwise from another execution. A step that the function has not called in
        this run cannot be executed, because its arguments are not stored.
        """
        self._incomplete.discard(step)
        if step.is_complete:
            self._stop_reverting(step)
            return
        state = step.record.state
        if state == states.RUNNING and step.record.waits_for is None:
            if step.arguments is None and not self._records.may_be_under_way(step):
                failure = unknown_result(step.record.name)
                self._records.finish_without_call(step, states.FAILURE, failure)
                self._complete(step)
            else:
                self._incomplete.add(step)
                self.to_begin.append((step, calls.EXECUTE))
        elif state in (states.FAILURE, states.REVERTING):
            self._complete(step)  # A retry that is dropped. The reversion continues that before it.
        elif step.record.meta_value(models.CHILD) is not None and calls_revert(step):
            self._incomplete.add(step)
            self.to_begin.append((step, calls.EXECUTE))  # The flow is cancelled.
        else:
            self._records.undo_begin(step)  # A wait that was open.

    def give_up(self, reason: GivenUp) -> None:
        """End the function without a result, because the workflow will be reverted."""
        if self._program is not None and (self._final_outcome is None or self.continues):
            self._program.close()
            self._reversions.clear()
            self._end(self._given_up(reason))

    def _given_up(self, reason: GivenUp) -> Any:
        return reason.failure(f"Workflow {self.record.name!r}")

    def halt(self) -> None:
        """Begin no more calls in this run. A later run continues."""
        self._is_halted = True
        self.to_begin.clear()
        if self._program is not None:
            self._program.close()

    @property
    def continues(self) -> bool:
        """Whether the function has ended and continues as a new attempt."""
        final = self._final_outcome
        return final is not None and isinstance(final.value, Continuation)

    @property
    def is_idle(self) -> bool:
        """Whether the run is halted and nothing is in flight."""
        return self._is_halted and not self.in_flight


def _take_concurrent(step: Step, earlier: list[Step]) -> list[Step]:
    """Remove and return the latest steps that are reverted together with a step.

    These are child flows that the function called before it received the end of any of them. So
    none can depend on another one.

    :param earlier: the complete steps before `step`, in the order of their completions.
    """
    taken: list[Step] = []
    after = step.note.after
    while after is not None and earlier:
        other = earlier[-1]
        if other.record.state in _TO_REVERT and not other.record.has_other_owner:
            is_child = other.note.after is not None and calls_revert(other)
            if not is_child or after >= (other.note.completed or 0):
                break
            taken.append(other)
            after = max(after, other.note.after or 0)
        earlier.pop()
    return taken


def _no_task(step: Step) -> ft.Failure:
    return ft.Failure.from_exception(
        exceptions.NotFound(
            f"Step {step.record.name!r} cannot be reverted: the module of the workflow does not"
            f" contain its task {step.note.task!r}. Import it there, then revert the flow again"
            " with `wbengine flow revert`"
        )
    )
