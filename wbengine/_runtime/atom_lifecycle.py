"""Begin and finish single atoms: store their records and collect events for listeners.

The run decides when an atom begins, flushes the marked records and then delivers the events. All
methods are called in the thread of the engine, except for those that running tasks call
(`_local_event`, `_remote_event`, `began`, `taken`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks, contexts, timers
from wbengine._logs import captured_lines, stored_lines
from wbengine._runtime import control, retry_delays, stored_starts
from wbengine._runtime import plan as plan_module
from wbengine._runtime.control import unknown_result
from wbengine._runtime.executors import composite
from wbengine._runtime.gates import signals_and_sleeps
from wbengine._runtime.incidents import IncidentEvent, Incidents
from wbengine._runtime.interrupted import InterruptedAttempts, is_refusal
from wbengine._runtime.maps import Maps
from wbengine._runtime.node_calls import Call, MapCall, RetryCall
from wbengine._runtime.retry_controllers import Retries
from wbengine._runtime.workflow_call import WorkflowCall, number_attempt
from wbengine._tasks import arguments
from wbengine._text import rates
from wbengine.persistence import _macs, models
from wbengine.running import LOCAL
from wbengine.types import _tags
from wbengine.types import failure as ft
from wbengine.types import notifier as notifier_module

__all__ = ["NO_RESULT", "AtomLifecycle", "StateEvent"]

NO_RESULT: Final = arguments.MISSING

#: Interval at which the beginnings of tasks in a local pool are stored.
_BEGIN_SECONDS: Final = 0.2

#: Progress that is reported to `update_progress` of a task when it enters a state.
_PROGRESS: Final[Mapping[str, float]] = {
    states.RUNNING: 0.0,
    states.REVERTING: 0.0,
    states.SUCCESS: 1.0,
    states.REVERTED: 1.0,
}


#: The default method, which has no effect if the task has no listeners.
_DEFAULT_UPDATE_PROGRESS: Final = task_module.Task.update_progress


class StateEvent(NamedTuple):
    """A change of state. Listeners receive it after it is written, in order.

    :ivar run: the attempt that ended with this change and with `result`; None for other changes.
    """

    record: models.AtomDetail
    atom: Any
    state: str
    old_state: str | None
    result: Any
    run: models.Attempt | None

    def notify_listeners(self, notifier: notifier_module.Notifier | None) -> None:
        atom, state = self.atom, self.state
        if notifier is not None:
            notifier.notify(state, self._details())
        if state in _PROGRESS and isinstance(atom, task_module.Task):
            try:
                atom.update_progress(_PROGRESS[state])
            except Exception:
                LOG.warning("%s.update_progress failed", atom, exc_info=True)

    def _details(self) -> dict[str, Any]:
        record, run = self.record, self.run
        attempt = record if run is None else run
        details: dict[str, Any] = {
            f"{record.kind}_name": record.name,
            f"{record.kind}_uuid": record.uuid,
            "old_state": self.old_state,
            "attempt": attempt.attempt,
            "executions": attempt.attempt - attempt.reversions,  # inlined: this runs for each event
            "reversions": attempt.reversions,
        }
        if run is not None:
            details.update(
                result=self.result,
                worker=run.worker,
                submitted=run.submitted,
                started=run.started,
                ended=run.ended,
                runtime=run.runtime,
            )
        return details


LOG: Final = logging.getLogger(__name__)


class AtomLifecycle:
    """Begins and finishes the atoms of a plan in a storage.

    :param in_process: the executor runs tasks in this process, so their own notifiers receive
        events directly. Otherwise, only the tasks in `local_tasks` run here.
    :param on_progress: called, from any thread, when a running task reported something to write
        soon, or with True: at once.
    :param executor: is asked only for calls that earlier runs may have left there.
    :param waiting: nodes of tasks that wait for signals.
    :param clock: the clock of the run.
    """

    def __init__(
        self,
        plan: plan_module.Plan,
        storage: storage_module.Storage,
        notifier: notifier_module.Notifier,
        *,
        in_process: bool,
        on_progress: Callable[..., None],
        executor: calls.TaskExecutor | None = None,
        local_tasks: composite.LocalTasks | None = None,
        keep_logs: bool = True,
        waiting: Collection[int] = (),
        clock: clocks.Clock = clocks.SYSTEM,
    ) -> None:
        self._plan = plan
        self._waiting = waiting
        self._storage = storage
        self._notifier = notifier
        # Always the same dict. It is empty if there are no listeners.
        self._topics = notifier.topics
        self._on_progress = on_progress
        self._is_immediate = executor is not None and executor.immediate
        self._has_store = storage.backend is not None
        self._stores_logs = self._has_store and keep_logs
        self._log_allowance: stored_lines.LogAllowance | None = None
        if self._stores_logs:
            self._log_allowance = stored_lines.LogAllowance(storage.flow_uuid)
            captured_lines.capture()
            level = stored_lines.excluding_level() if in_process else None
            storage.flow_detail.log_level = level
        self._in_process = in_process
        self._events_class: type[_Events] = _Events
        if self._has_store:
            self._events_class = _StoredTaskEvents
        elif executor is not None and not executor.immediate:  # tasks may be queued
            self._events_class = _TaskEvents
        self._local_tasks = local_tasks
        #: Unix seconds at the start of the iteration: the submission time of its calls.
        self.now: float | None = None
        self._flow_uuid = storage.flow_uuid
        self.events: list[StateEvent | IncidentEvent] = []
        # By name: beginnings that were not delivered because the run was suspended.
        self._deferred_events: dict[str, StateEvent] = {}
        #: Atoms that fail when they begin, because a decider raised an exception.
        self._fail_early: dict[int, ft.Failure] = {}
        # Atoms that ran when an earlier run died, may have had effects, and began again.
        self._interrupted: set[int] = set()
        #: Calls that ended before they could be submitted.
        self.failed_before_submit: list[tuple[Call, calls.Outcome]] = []
        self.retries = Retries(plan, storage, clock)
        # None: no worker can be lost, and no task was resent yet.
        self._incidents = None if in_process else Incidents(storage, notifier, on_progress)
        self.maps = Maps(storage, local_tasks, captures=self._stores_logs)
        self._interrupted_attempts = InterruptedAttempts(storage, executor, local_tasks)
        self._begin_timer: timers.Timer | None = None

    def begin(self, node: int, action: calls.Action) -> Call | None:
        """Enter RUNNING or REVERTING and prepare the call.

        The attempt number increases, unless the executor knows the result of an attempt that an
        earlier run left unfinished; that attempt continues.

        :returns: None if the call cannot be prepared (an argument is missing);
            `take_failed_before_submit` then returns its outcome.
        """
        record = self._record(node)
        atom: Any = self._plan.items[node]
        is_task = self._plan.kinds[node] == plan_module.TASK
        if is_task and atom.fans_out:
            return self._begin_map(MapCall(node, atom, action), record)
        if is_task and atom.runs_steps:
            return self._begin_workflow(node, atom, action, record)
        has_eta = is_task and action == calls.EXECUTE and atom.eta is not None
        began_before = record.state in _BEGUN
        is_resumed = began_before and self._interrupted_attempts.is_resumed(record, atom, action)
        runs_again = False
        if is_resumed:
            self._interrupted_attempts.raise_epoch(record)
        elif (
            action == calls.EXECUTE
            and record.attempt
            and record.meta_value(signals_and_sleeps.WAITS_FOR) is not None
        ):
            # Nothing was started. The task continues to wait, unless its new definition does not.
            if node not in self._waiting:
                self.end_wait(node)
        elif has_eta and record.attempt and stored_starts.is_waiting(record, self._time()):
            pass  # As above, for its start.
        else:
            if began_before:
                runs_again = (
                    is_task
                    and record.action == action
                    and stored_starts.has_passed(record, self._time())
                )
                lost_worker = record.worker
                if record.state == states.RUNNING and action == calls.EXECUTE:
                    self._interrupted.add(node)
            if record.attempt:
                record.archive_attempt()
                if is_task and atom.transaction is not None and action == calls.EXECUTE:
                    record.settle_attempts()
            record.attempt += 1
            if action == calls.REVERT:
                record.reversions += 1
            record.epoch = 1
            record.submitted = self.now
        if has_eta:
            stored_starts.store_start(record, atom, self._time())
        self.enter(record, atom, action)
        if self._storage.code is not None:
            self._storage.note_code()
        if runs_again:
            self.note_resend(record, lost_worker)
        call: Any
        if not is_task:
            call = RetryCall(node, atom, action)
            return None if self._fails_before_start(call) else call
        call = calls.Invocation(atom, action, record.uuid, record.attempt)
        call.node, call.repeats = node, record.repeats if record.past else 0
        if atom.transaction is not None:
            call.settled = record.settled
        call.flow_uuid = self._flow_uuid
        call.priority = atom.priority
        if self._local_tasks is not None:
            call.local = atom in self._local_tasks
            if node in self._waiting and action == calls.EXECUTE:
                signals_and_sleeps.begin_wait(record, atom, self._time())
        remote = not (self._in_process or call.local)
        call.events = self._events_class(self, record, atom, remote)
        call.captures = self._stores_logs
        if is_resumed:
            self._interrupted_attempts.mark_recovered(call, record)
        if self._fail_early and self._fails_before_start(call):
            return None
        return self._prepare(call, atom, record)

    def _time(self) -> float:
        return time.time() if self.now is None else self.now

    def _begin_map(self, call: MapCall, record: models.AtomDetail) -> Call | None:
        """Begin a Map, or continue an attempt of an earlier run under the same number."""
        attempt = record.attempt
        recovered = self._interrupted_attempts.number_items(record, call.task, call.action)
        runs_again = sends_first = False
        if record.attempt != attempt:
            record.submitted = self.now
        elif record.items is not None and not record.items.in_flight:
            sends_first = self._interrupted_attempts.has_ledger
        elif record.items is not None and not recovered:
            runs_again = stored_starts.has_passed(record, self._time())
        if call.action == calls.EXECUTE and call.task.inner.eta is not None:
            stored_starts.store_start(record, call.task.inner, self._time())
        self.enter(record, call.task, call.action)
        if runs_again:
            self.note_resend(record, None)  # Items have no record of their start.
        if self._fails_before_start(call):
            return None
        outcome: calls.Outcome | None
        try:
            outcome = self.maps.begin(call, record, recovered=recovered, runs_again=runs_again)
        except exceptions.NotFound as error:
            outcome = calls.Outcome(_failed_to_begin(record.name, call.action, error))
        except Exception as error:
            outcome = calls.Outcome(ft.Failure.from_exception(error))
        if outcome is None:
            if self._storage.code is not None:
                self._storage.note_code()
            if sends_first:
                # On all levels of durability, as the next run only looks up items that are stored
                # as being in flight.
                self._storage.writer.flush()
            return call
        self.failed_before_submit.append((call, outcome))
        return None

    def _begin_workflow(
        self, node: int, atom: task_module.Workflow, action: calls.Action, record: models.AtomDetail
    ) -> Call | None:
        """Begin a workflow, or continue an attempt of an earlier run under the same number."""
        attempt = record.attempt
        number_attempt(record, action)
        if record.attempt != attempt:
            record.submitted = self.now
        self.enter(record, atom, action)
        call = WorkflowCall(node, atom, action, record)
        if self._fails_before_start(call):
            return None
        if action == calls.EXECUTE:
            try:
                call = call._replace(arguments=self.workflow_arguments(node, atom))
            except exceptions.NotTrusted:
                raise  # The flow is unchanged, and can be resumed after a repair.
            except Exception as error:
                is_lost = isinstance(error, exceptions.PayloadUnavailable)
                if is_lost and record.attempt == attempt:
                    raise  # An attempt that began does not fail because its input was lost since.
                failure = (
                    ft.Failure.from_exception(error)
                    if is_lost
                    else _failed_to_begin(record.name, action, error)
                )
                self.failed_before_submit.append((call, calls.Outcome(failure)))
                return None
        # The function does not wait for a slot or a worker.
        record.worker, record.started = LOCAL, self.now
        return call

    def workflow_arguments(
        self, node: int, atom: task_module.Workflow, inputs: Mapping[str, Any] = calls.NO_ARGUMENTS
    ) -> dict[str, Any]:
        """Return the arguments of a workflow.

        :param inputs: values with precedence over the stored inputs of the flow.
        :raises NotFound: if an argument has no value.
        """
        defaults = {  # The function may have lost a parameter in the meantime.
            name: value
            for name, value in self._storage._defaults_of(atom.name).items()
            if name in atom.rebind
        }
        arguments = self._storage.gather(node, atom.name, atom.rebind, atom.optional, inputs)
        continued = self._continued_inputs(self._record(node), atom)
        return {
            name: self._storage.loaded(value, f"argument {name!r} of {atom.name!r}")
            for name, value in {**defaults, **arguments, **continued}.items()
        }

    def _continued_inputs(
        self, record: models.AtomDetail, atom: task_module.Workflow
    ) -> Mapping[str, Any]:
        """Return the inputs with which a workflow continued as new.

        :raises NotTrusted: if there are keys, and the inputs have no valid MAC.
        """
        content = record.meta_value(models.CONTINUED)
        if content is None:
            return calls.NO_ARGUMENTS
        _macs.check_continuation(self._storage.flow_uuid, record)
        inputs: Mapping[str, Any] = content["inputs"]
        # The function may have lost a parameter in the meantime.
        return {name: value for name, value in inputs.items() if name in atom.rebind}

    # For steps of workflows.

    def begin_attempt(
        self,
        record: models.AtomDetail,
        atom: task_module.Task,
        action: calls.Action,
        now: float,
    ) -> bool:
        """Assign the next attempt number to a step, unless an unfinished attempt continues.

        :returns: whether the executor may know the result of an unfinished attempt.
        """
        if record.state in _BEGUN and self._interrupted_attempts.is_resumed(record, atom, action):
            self._interrupted_attempts.raise_epoch(record)
            return True
        if atom.is_wait and record.attempt and record.waits_for is not None:
            return False  # The step continues to wait.
        if action == calls.EXECUTE and record.attempt and stored_starts.is_waiting(record, now):
            return False  # As above.
        if record.attempt:
            record.archive_attempt()
            if atom.transaction is not None and action == calls.EXECUTE:
                record.settle_attempts()
        record.attempt += 1
        if action == calls.REVERT:
            record.reversions += 1
        record.epoch = 1
        record.submitted = now
        return False

    def may_be_under_way(self, atom: task_module.Task) -> bool:
        """Return whether the executor may know the result of an unfinished attempt."""
        return self._interrupted_attempts.may_be_under_way(atom)

    def prepare_call(
        self, call: calls.Invocation, record: models.AtomDetail, atom: task_module.Task
    ) -> None:
        """Set where the call of a step runs, and who receives its events."""
        if self._local_tasks is not None:
            call.local = atom in self._local_tasks
        remote = not (self._in_process or call.local)
        call.events = self._events_class(self, record, atom, remote)
        call.captures = self._stores_logs

    def set_payloads(self, invocations: Iterable[calls.Invocation]) -> None:
        """Set where the values of calls are stored out of line."""
        if self._storage.payloads is not None:
            for call in invocations:
                call.payloads = self._storage.payloads
                call.stores_large = self._storage.large_values is not None

    def note_resend(self, record: models.AtomDetail, lost_worker: str | None) -> None:
        """Note that an attempt begins again whose first copy may have had effects."""
        if self._incidents is None:
            self._incidents = Incidents(self._storage, self._notifier, self._on_progress)
        self._incidents.add(record, record.attempt, states.RESENT, lost_worker)

    def change_state(self, record: models.AtomDetail, atom: Any, state: str, result: Any) -> None:
        """Store the result of a step for which nothing ran."""
        old_state = record.state
        record.put(state, result)
        self._storage.writer.mark(record)
        self._add_event(record, atom, state, old_state, NO_RESULT)

    def enter(self, record: models.AtomDetail, atom: Any, action: calls.Action) -> None:
        """Enter RUNNING or REVERTING."""
        old_state = record.state
        record.action = action
        record.worker = record.started = record.ended = None
        record.progress = None
        if action == calls.EXECUTE:
            record.state = states.RUNNING
            record.progress_details = None
        else:
            record.state = states.REVERTING
            record.revert_failure = None
            # An atom that was in flight when its scope was given up still has its old intention.
            record.intention = states.REVERT
        if self._has_store:
            self._storage.writer.mark(record)
        self._add_event(record, atom, record.state, old_state, NO_RESULT)

    def _fails_before_start(self, call: Call) -> bool:
        """End an execution before it begins if one of its deciders raised an exception."""
        if call.action != calls.EXECUTE or call.node not in self._fail_early:
            return False
        self.failed_before_submit.append((call, calls.Outcome(self._fail_early.pop(call.node))))
        return True

    def _prepare(
        self, call: calls.Invocation, atom: task_module.Task, record: models.AtomDetail
    ) -> calls.Invocation | None:
        executes = call.action == calls.EXECUTE
        rebind = atom.rebind if executes else atom.revert_rebind
        if executes and not rebind:
            return call
        try:
            if rebind:
                optional = atom.optional if executes else atom.revert_optional
                call.arguments = self._storage.gather(call.node, atom.name, rebind, optional)
        except Exception as error:
            if not executes and record.failure is not None and record.last_results is None:
                # The execution failed because of missing arguments, so there is nothing to revert.
                outcome = calls.Outcome(None)
            else:
                outcome = calls.Outcome(_failed_to_begin(atom.name, call.action, error))
            self.failed_before_submit.append((call, outcome))
            return None
        if not executes:
            call.result = record.failure if record.failure is not None else record.results
            call.failures = self._storage.get_execute_failures()
        return call

    def take_failed_before_submit(self) -> list[tuple[Call, calls.Outcome]]:
        failed, self.failed_before_submit = self.failed_before_submit, []
        return failed

    def finish(
        self, call: Call, outcome: calls.Outcome, step_record: models.TaskDetail | None = None
    ) -> str:
        """Store the outcome of an atom, or of the step with the record `step_record`."""
        record = self._record(call.node) if step_record is None else step_record
        value = self._storage.keepable(outcome) if self._has_store else outcome.value
        executed = call.action == calls.EXECUTE
        if (
            outcome.started is None
            and isinstance(call, calls.Invocation)
            and is_refusal(value)
            and self.may_have_run(call)
        ):
            value = unknown_result(record.name, value)
        self._interrupted.discard(call.node)
        old_state = record.state
        if outcome.started is not None or outcome.worker not in (None, record.worker):
            record.worker, record.started = outcome.worker, outcome.started
        record.ended = outcome.ended  # a call that was given up keeps its worker and start time
        if record.incidents and outcome.worker not in (None, LOCAL):
            record.set_incident_worker(outcome.worker)
        atom: Any = self._plan.items[call.node] if step_record is None else call.task  # type: ignore[union-attr]
        if isinstance(value, ft.Failure):
            state = states.FAILURE if executed else states.REVERT_FAILURE
            value.belongs_to(atom._home())
        else:
            state = states.SUCCESS if executed else states.REVERTED
            record.progress = None
        if step_record is None:
            self._storage.put(record, state, value)
        else:  # The failure of a step is not one of the flow.
            record.put(state, value)
            self._storage.writer.mark(record)
        if state == states.SUCCESS and atom.save_as:
            _warn_if_short(atom, value)
        if self._deferred_events and record.name in self._deferred_events:
            self.events.append(self._deferred_events.pop(record.name))
        self._add_event(record, atom, state, old_state, value)
        return state

    def may_have_run(self, call: calls.Invocation) -> bool:
        """Return whether an execution that was refused may have run in an earlier run."""
        if call.action != calls.EXECUTE:
            return False
        if call.recovered:
            return not self._interrupted_attempts.has_ledger
        return call.node in self._interrupted if call.step is None else call.step.may_have_run

    def failure(self, node: int) -> ft.Failure:
        failure = self._record(node).failure
        assert failure is not None
        return failure

    def undo_begin(self, node: int, call: Call | None = None) -> bool:
        """Undo `begin` for a call that did not start. The attempt number stays used.

        This has no effect on an atom that did not begin and on a Map in flight.

        :param call: the call, if the executor returned it.
        :returns: True if the call may have run, in an earlier run or on a worker that was lost. It
            then has to end, and may be reverted.
        """
        if node in self.maps.running:
            return False
        withdrawn_call = call if isinstance(call, calls.Invocation) else None
        if self._interrupted_attempts.keeps(node, withdrawn_call) or node in self._interrupted:
            return True
        self.undo_record(self._record(node), self._plan.items[node])
        return False

    def never_began(self, call: Call) -> bool:
        """Return whether a call was cancelled before it started, and no earlier run started it.

        The workflow of a step decides about it.
        """
        return (
            isinstance(call, calls.Invocation)
            and call.cancellation.prevented
            and call.step is None
            and not (call.recovered or call.resumed or call.node in self._interrupted)
        )

    def undo_record(self, record: models.AtomDetail, atom: Any) -> None:
        """Return the record of an atom or step that did not start to its state before `begin`."""
        old_state = record.state
        if old_state == states.RUNNING:
            # A retry controller that made attempts before may still have to be reverted.
            has_attempts = isinstance(record, models.RetryDetail) and record.results
            record.state = states.RETRYING if has_attempts else states.PENDING
        elif old_state == states.REVERTING:
            record.state = states.FAILURE if record.failure is not None else states.SUCCESS
        else:
            return
        if record.started is None:
            record.worker = None  # the worker that had received the call did not start it
        self._storage.writer.mark(record)
        if self._deferred_events.pop(record.name, None) is None:
            self._add_event(record, atom, record.state, old_state, NO_RESULT)

    def retry_reverts(self) -> None:
        """Let reversions that failed run again: return their atoms to the state before them."""
        for record in self._storage.records:
            if record is not None and record.state == states.REVERT_FAILURE:
                record.state = states.FAILURE if record.failure is not None else states.SUCCESS
                self._storage.writer.mark(record)

    def mark(self, record: models.AtomDetail) -> None:
        """Write a changed record with the next write."""
        self._storage.writer.mark(record)

    def store_waits(self, waiting: Iterable[calls.Invocation]) -> None:
        """Store in the flow's record which tasks wait for signals."""
        waits = []
        for call in waiting:
            wait = self.record_of(call).waits_for
            if wait is not None:
                waits.append(wait)
        flow = self._storage.flow_detail
        if waits or flow.waits_for:
            with self._storage.writer.mutex, self._storage.batch():
                flow.waits_for = waits
                self._storage.writer.mark_flow()

    def store_pauses(self, patterns: Iterable[str]) -> None:
        """Store in the flow's record for which pauses of task types it is parked."""
        flow, paused_by = self._storage.flow_detail, tuple(patterns)
        if paused_by != flow.paused_by:
            with self._storage.writer.mutex, self._storage.batch():
                flow.meta[models.PAUSED_BY] = list(paused_by)
                self._storage.writer.mark_flow()

    def store_permit_units(self, units: float) -> None:
        """Store in the flow's record how many units its limit must have for its next run."""
        flow = self._storage.flow_detail
        if units != flow.permit_units:
            with self._storage.writer.mutex, self._storage.batch():
                flow.meta[models.PERMIT_UNITS] = units
                self._storage.writer.mark_flow()

    def end_wait(self, node: int) -> None:
        """Forget the signal or time for which an atom waited: its next wait is a new one."""
        retry_delays.clear(self._record(node))

    def undo_begun_waits(self) -> None:
        """Return tasks that waited for signals when an earlier run died to PENDING."""
        for node in self._waiting:
            if self._record(node).state == states.RUNNING:
                self.undo_begin(node)

    def begin_retry(self, node: int, now: float, wait_ended: bool) -> float:
        """Enter RETRYING after a retry controller retried its flow and the flow is reverted.

        Called again, with `wait_ended`, after the wait. `now` is in Unix seconds.

        :returns: seconds to wait before the execution.
        """
        record = self._record(node)
        retry: Any = self._plan.items[node]
        if record.state != states.RETRYING:
            old_state, record.state = record.state, states.RETRYING
            record.intention = states.EXECUTE
            self._storage.writer.mark(record)
            self._add_event(record, retry, states.RETRYING, old_state, NO_RESULT)
        try:
            return retry_delays.seconds_left(self._storage, retry, now, wait_ended)
        except Exception as error:
            self.fail_before_start(node, error)
            return 0.0

    def set_intentions(self, changes: Iterable[tuple[int, str]]) -> None:
        for node, intention in changes:
            record = self._record(node)
            if record.intention != intention:
                record.intention = intention
                self._storage.writer.mark(record)

    def give_up(
        self, changes: Iterable[tuple[int, str]], given_up: control.GivenUp, now: float
    ) -> None:
        """Store intentions and, for later runs, why the flow was given up."""
        self.set_intentions(changes)
        with self._storage.writer.mutex, self._storage.batch():
            given_up.note(self._storage.flow_detail, now)
            self._storage.writer.mark_flow()

    @property
    def given_up_before(self) -> control.GivenUp | None:
        """Why an earlier run gave up the flow, or None."""
        return control.read_given_up(self._storage.flow_meta)

    def ignore(self, nodes: Iterable[int]) -> None:
        """Enter IGNORE: deciders left these atoms out."""
        for node in nodes:
            record = self._record(node)
            old_state, record.state = record.state, states.IGNORE
            record.intention = states.IGNORE
            self._storage.writer.mark(record)
            self._add_event(record, self._plan.items[node], states.IGNORE, old_state, NO_RESULT)

    def reset(self, nodes: Iterable[int], scope: Container[int] = ()) -> None:
        """Return atoms to PENDING without results and failures. Attempt numbers continue.

        An atom whose result another flow reverts keeps this result.

        :param scope: all nodes of the flow that runs again, without its retry controller.
        """
        for node in [node for node in self._fail_early if node in scope]:
            del self._fail_early[node]
        for node in nodes:
            record = self._record(node)
            old_state = record.state
            is_untouched = old_state == states.PENDING and record.intention == states.EXECUTE
            # `undo_begin` may have returned a task that waits for a signal or its `eta` to PENDING.
            waits = node in self._waiting or record.meta_value(models.STARTS_AT) is not None
            if is_untouched and not waits:
                continue
            if record.has_other_owner:
                self._storage.set_atom_intention(record.name, states.EXECUTE)
                continue
            retry_delays.clear(record)
            self._storage.reset(record.name)
            self._add_event(record, self._plan.items[node], states.PENDING, old_state, NO_RESULT)

    def call_deciders(self, ballot: Collection[plan_module.Edge]) -> list[plan_module.Edge]:
        """Call the deciders of links to one target; return the links that they refused.

        Each decider receives the results of all source atoms by name. Exceptions of deciders
        propagate.
        """
        history: dict[str, Any] = {}
        for edge in ballot:
            if edge.source >= 0:
                name = self._record(edge.source).name
                history[name] = self._storage.get_execute_result(name)
        return [edge for edge in ballot if not contexts.run(edge.decider, history=history)]

    def fail_before_start(self, node: int, error: BaseException) -> None:
        """Let a target fail when it begins, because one of its deciders raised an exception."""
        failure = ft.Failure.from_exception(error)
        plan = self._plan
        inside: Collection[int] = (node,)
        if plan.kinds[node] == plan_module.FLOW:
            inside = range(node, plan.end[node])
        self._fail_early.update((n, failure) for n in inside if plan.is_atom(n))

    def take_incidents(self) -> None:
        """Add new incidents to `events`, before the records are written."""
        if self._incidents is not None and self._incidents.undelivered:
            # they concern atoms that were reported as running
            self.events[:0] = self._incidents.take()

    def deliver(self, is_stopped: Callable[[], bool] | None = None) -> None:
        """Deliver the written events to listeners.

        From the moment `is_stopped` returns True, events of atoms that began and did not end are
        held: their begin is about to be undone, which is not reported either.
        """
        while self.events:
            events, self.events = self.events, []
            for event in events:
                if (
                    isinstance(event, StateEvent)
                    and event.state == event.record.state
                    and is_stopped is not None
                    and event.state in _BEGUN
                    and is_stopped()
                ):
                    self._deferred_events[event.record.name] = event
                else:
                    event.notify_listeners(self._notifier if self._topics else None)

    def _add_event(
        self, record: models.AtomDetail, atom: Any, state: str, old_state: str | None, result: Any
    ) -> None:
        if (
            self._topics
            or getattr(atom, "_listeners", None) is not None
            or getattr(type(atom), "update_progress", _DEFAULT_UPDATE_PROGRESS)
            is not _DEFAULT_UPDATE_PROGRESS
        ):
            # The record changes further before this event is delivered.
            run = record.last_attempt if result is not NO_RESULT else None
            self.events.append(StateEvent(record, atom, state, old_state, result, run))

    def _keep_log(
        self, record: models.AtomDetail, attempt: int, index: int, details: dict[str, Any]
    ) -> None:
        """Store logs of a task (`index` is -1) or of an item of a Map. Thread-safe."""
        # None: the run is over
        if self._log_allowance is None or self._storage.writer.lease is None:
            return
        lines = stored_lines.lines_of(details)
        if lines and (lines := self._log_allowance.take((record.uuid, attempt, index), lines)):
            chunk = models.LogChunk(record.uuid, attempt, index, lines)
            self._storage.writer.mark_log(chunk)
            self._on_progress()

    def _mark_begun(self, record: models.AtomDetail, worker: str) -> None:
        """Store that a task began. Thread-safe.

        Beginnings in a local pool are stored together, after `_BEGIN_SECONDS`.
        """
        self._storage.writer.mark(record)
        if self._is_immediate:
            self._on_progress(True)
        elif worker == LOCAL and self._begin_timer is None:
            self._begin_timer = timers.of_process().after(_BEGIN_SECONDS, self._write_begun)

    def _write_begun(self) -> None:
        self._begin_timer = None
        if self._storage.writer.lease is not None:  # otherwise the run is over
            self._on_progress()

    def _keep_tags(self, task: str, details: dict[str, Any], latest: _tags.Latest) -> _tags.Latest:
        """Set the tags of an event that are new after `latest`. Return the latest. Thread-safe.

        :param task: the name of the task, for the log.
        """
        if self._has_store and self._storage.writer.lease is None:  # the run is over
            return latest
        tags, latest = _tags.new_tags(details, latest)
        if tags and self._storage.writer.set_tags(tags, f"task {task!r}"):
            self._on_progress(True)
        return latest

    def _local_event(
        self, record: models.AtomDetail, event_type: str, details: dict[str, Any]
    ) -> None:
        if event_type != task_module.EVENT_UPDATE_PROGRESS:
            return
        progress = models.progress_of(details.get("progress"))
        if progress is not None:
            progress_details = {key: value for key, value in details.items() if key != "progress"}
            if not self._has_store:
                self._storage.set_task_progress(record.name, progress, progress_details)
            elif self._storage.writer.lease is not None:  # otherwise the run is over
                self._storage.set_task_progress(record.name, progress, progress_details)
                self._on_progress()

    def _remote_event(
        self, record: models.AtomDetail, atom: Any, event_type: str, details: dict[str, Any]
    ) -> None:
        self._local_event(record, event_type, details)
        if atom._listeners is not None:
            atom.notifier.notify(event_type, details)

    def item_events(
        self, record: models.AtomDetail, item: int, task: task_module.Task, local: bool
    ) -> _ItemEvents | None:
        """Return the receiver of an item's events, or None if it would receive nothing."""
        remote = not (self._in_process or local)
        if not (remote or self._has_store):
            return None
        return _ItemEvents(self, record, task, remote, item)

    def record(self, node: int) -> models.AtomDetail:
        return self._record(node)

    def record_of(self, call: calls.Invocation) -> models.AtomDetail:
        """Return the record of a task, or of the step of a workflow."""
        record: models.AtomDetail = (
            self._record(call.node) if call.step is None else call.step.record
        )
        return record

    def _record(self, node: int) -> models.AtomDetail:
        record = self._storage.records[node]
        assert record is not None
        return record


_NO_TAG: Final = _tags.Latest()


class _Events:
    """Receives the events of one running atom. It is small, because most atoms have no events."""

    __slots__ = ("_atom", "_attempt", "_latest_tag", "_lifecycle", "_record", "_remote", "spent")

    _item = -1

    def __init__(
        self, lifecycle: AtomLifecycle, record: models.AtomDetail, atom: Any, remote: bool
    ) -> None:
        self._lifecycle = lifecycle
        self._record = record
        self._atom = atom
        self._remote = remote
        self._attempt = record.attempt
        self._latest_tag = _NO_TAG
        #: Units of its limit that the task has reported, or None.
        self.spent: float | None = None

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if event_type == _tags.EVENT:
            self._keep_tags(details)
        elif event_type == calls.SPENT:
            self._keep_spent(details)
        elif self._remote:
            self._lifecycle._remote_event(self._record, self._atom, event_type, details)
        else:
            self._lifecycle._local_event(self._record, event_type, details)

    def _keep_tags(self, details: dict[str, Any]) -> None:
        record = self._record
        # A thread of an earlier attempt may still run.
        if record.state in _BEGUN and record.attempt == self._attempt:
            latest = self._lifecycle._keep_tags(record.name, details, self._latest_tag)
            self._latest_tag = latest

    def _keep_spent(self, details: dict[str, Any]) -> None:
        try:
            self.spent = rates.check_units("spent units", details.get("units"))
        except (TypeError, ValueError) as error:
            LOG.warning("Spent units of task %r are ignored: %s", self._record.name, error)

    def incident(self, event: str, worker: str | None) -> None:
        incidents = self._lifecycle._incidents
        if incidents is not None:
            incidents.add(self._record, self._attempt, event, worker, self._item)


class _TaskEvents(_Events):
    __slots__ = ()

    def began(self, worker: str, requests_write: bool = True) -> None:
        """Note that a worker, or a slot of a pool, began the task now. Thread-safe.

        The outcome contains the same facts. With `requests_write`, the loop writes them earlier.
        """
        record = self._record
        is_running = record.state in _BEGUN and record.attempt == self._attempt
        if is_running and record.started is None:
            record.worker, record.started = worker, time.time()
            self._note_begin(record, worker, requests_write)

    def _note_begin(self, record: models.AtomDetail, worker: str, requests_write: bool) -> None:
        """Do nothing: without a store, no beginning is stored."""


class _StoredTaskEvents(_TaskEvents):
    __slots__ = ()

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if event_type == stored_lines.EVENT:
            self._lifecycle._keep_log(self._record, self._attempt, -1, details)
        else:
            super().__call__(event_type, details)

    def _note_begin(self, record: models.AtomDetail, worker: str, requests_write: bool) -> None:
        if record.incidents:
            record.set_incident_worker(worker)
        if requests_write:
            self._lifecycle._mark_begun(record, worker)

    def taken(self, worker: str) -> None:
        """Record the worker that claimed the task; it may have no free slot yet. Thread-safe."""
        lifecycle, record = self._lifecycle, self._record
        is_running = record.state in _BEGUN and record.attempt == self._attempt
        if is_running and record.started is None and record.worker != worker:
            record.worker = worker
            lifecycle._storage.writer.mark(record)


class _ItemEvents(_Events):
    """Receives the events of one item of a Map; remote ones go to the task's listeners."""

    __slots__ = ("_item",)

    def __init__(
        self,
        lifecycle: AtomLifecycle,
        record: models.AtomDetail,
        task: task_module.Task,
        remote: bool,
        item: int,
    ) -> None:
        super().__init__(lifecycle, record, task, remote)
        self._item = item

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if event_type == stored_lines.EVENT:
            self._lifecycle._keep_log(self._record, self._attempt, self._item, details)
        elif event_type == _tags.EVENT:
            self._keep_tags(details)
        elif event_type == calls.SPENT:
            self._keep_spent(details)
        elif self._remote and self._atom._listeners is not None:
            self._atom.notifier.notify(event_type, details)


_BEGUN: Final = frozenset({states.RUNNING, states.REVERTING})


def _failed_to_begin(name: str, action: calls.Action, error: Exception) -> ft.Failure:
    problem = exceptions.NotFound(f"Atom {name!r} cannot {action}: {error}")
    problem.__cause__ = error
    return ft.Failure.from_exception(problem)


def _warn_if_short(atom: task_module.Task, value: Any) -> None:
    for name, index in atom.save_as.items():
        if index is not None and arguments.element(value, index) is arguments.MISSING:
            LOG.warning(
                "Atom %r must return %r (part %r of its result), got %s",
                atom.name,
                name,
                index,
                type(value).__name__,
            )
