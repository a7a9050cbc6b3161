"""One atom begins, or comes to its end: what is stored of it, and who is told.

The run decides which atom and when; an executor runs it; between the two stands this module.
It marks records (the run flushes them) and collects events (the run delivers them once
what they tell is written).  Only the engine's thread calls it, except for what running tasks tell
(`_local_event`, `_remote_event`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import arguments, composite_executor, exceptions, states, task_logs
from wbengine import invocation as calls
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine.persistence import models
from wbengine.runtime import control
from wbengine.runtime import plan as plan_module
from wbengine.runtime import waits as waits_module
from wbengine.runtime.incidents import IncidentEvent, Incidents
from wbengine.runtime.interrupted import InterruptedAttempts
from wbengine.runtime.maps import MapCall, Maps
from wbengine.runtime.retries import Retries, RetryCall
from wbengine.types import failure as ft
from wbengine.types import notifier as notifier_module

__all__ = ["NO_RESULT", "Call", "AtomLifecycle", "StateEvent", "RetryCall"]

#: The result of a change of state that brings none.
NO_RESULT: Final = arguments.MISSING

#: What a task's `update_progress`, and with it its own listeners, is told by the engine.
_PROGRESS: Final[Mapping[str, float]] = {
    states.RUNNING: 0.0,
    states.REVERTING: 0.0,
    states.SUCCESS: 1.0,
    states.REVERTED: 1.0,
}


#: What tells nobody of the progress of a task that has no listeners.
_UPDATE: Final = task_module.Task.update_progress


class StateEvent(NamedTuple):
    """A change of state to be told: once it is written, and in the order it happened.

    `run` is the attempt that came to its end by it, with `result`.
    """

    record: models.AtomDetail
    atom: Any
    state: str
    old_state: str | None
    result: Any
    run: models.Attempt | None

    def tell(self, notifier: notifier_module.Notifier | None) -> None:
        """Tell `notifier`, and the atom's own listeners."""
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
        told = record if run is None else run
        details: dict[str, Any] = {
            f"{record.kind}_name": record.name,
            f"{record.kind}_uuid": record.uuid,
            "old_state": self.old_state,
            "attempt": told.attempt,
            "executions": told.attempt - told.reversions,  # without a call for each event
            "reversions": told.reversions,
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

#: What is in flight: a task's invocation, a retry's call, or a Map's.
Call = calls.Invocation | RetryCall | MapCall


class AtomLifecycle:
    """Begins and finishes atoms of one plan on one storage.

    `in_process`: the executor runs tasks here, so their own notifiers hear them directly; where it
    does not, those in `local_tasks` stay here.
    `on_progress` is called (from any thread) when a running task told something that should be
    written soon.  `executor` is asked only what of earlier runs it may still have.  `keep_logs`:
    what tasks log is stored with the records, where there is a store.  `waiting` are the nodes of
    tasks that wait for signals.
    """

    def __init__(
        self,
        plan: plan_module.Plan,
        storage: storage_module.Storage,
        notifier: notifier_module.Notifier,
        *,
        in_process: bool,
        on_progress: Callable[[], None],
        executor: calls.TaskExecutor | None = None,
        local_tasks: composite_executor.LocalTasks | None = None,
        keep_logs: bool = True,
        waiting: Collection[int] = (),
    ) -> None:
        self._plan = plan
        self._waiting = waiting
        self._storage = storage
        self._notifier = notifier
        # Always the same dict: empty as long as nobody listens.
        self._topics = notifier.topics
        self._on_progress = on_progress
        self._kept = storage.backend is not None
        self._keeps_logs = self._kept and keep_logs
        self._log_allowance: task_logs.LogAllowance | None = None
        if self._keeps_logs:
            self._log_allowance = task_logs.LogAllowance(storage.flow_uuid)
            task_logs.capture()
        self._in_process = in_process
        self._local_tasks = local_tasks
        #: Unix seconds as the turn begins: when what it hands out is submitted.
        self.now: float | None = None
        self._flow_uuid = storage.flow_uuid
        #: Changes that nobody was told of so far.
        self.events: list[StateEvent | IncidentEvent] = []
        # That an atom began, when somebody suspended before it was told: by the atom's name.
        self._held_events: dict[str, StateEvent] = {}
        #: Atoms that fail as soon as they begin, because their deciders could not be asked.
        self._fail_early: dict[int, ft.Failure] = {}
        # What was running when an earlier run died, and may have done something; it began again.
        self._interrupted: set[int] = set()
        #: Calls that ended before they could be submitted.
        self.failed_before_submit: list[tuple[Call, calls.Outcome]] = []
        self.retries = Retries(plan, storage)
        # None: tasks run here, and no worker can be lost with one.
        self._incidents = None if in_process else Incidents(storage, notifier, on_progress)
        self.maps = Maps(storage, local_tasks, captures=self._keeps_logs)
        self._earlier = InterruptedAttempts(storage, executor, local_tasks)

    # -- tasks ----------------------------------------------------------------------------------

    def begin(self, node: int, action: calls.Action) -> Call | None:
        """Enter RUNNING or REVERTING, and prepare the call.

        Under the next attempt number, unless the executor can tell what became of an attempt that
        an earlier run left unfinished: that one goes on.  None when it could not be prepared (an
        argument is missing): then `take_failed_before_submit` has its outcome.
        """
        record = self._record(node)
        atom: Any = self._plan.items[node]
        is_task = self._plan.kinds[node] == plan_module.TASK
        if is_task and atom.fans_out:
            return self._begin_map(MapCall(node, atom, action), record)
        again = record.state in _BEGUN and self._earlier.is_resumed(record, atom, action)
        if again:
            self._earlier.raise_epoch(record)
        else:
            if record.state == states.RUNNING and action == calls.EXECUTE:
                self._interrupted.add(node)
            if record.attempt:
                record.keep_attempt()
            record.attempt += 1
            if action == calls.REVERT:
                record.reversions += 1
            record.epoch = 1
            record.submitted = self.now
        self._enter(record, atom, action)
        call: Any
        if not is_task:
            self.retries.clear_backoff(record)
            call = RetryCall(node, atom, action)
            return None if self._fails_before_start(call) else call
        call = calls.Invocation(atom, action, record.uuid, record.attempt)
        call.node = node
        call.flow_uuid = self._flow_uuid
        call.priority = atom.priority
        if self._local_tasks is not None:
            call.local = atom in self._local_tasks
            if node in self._waiting and action == calls.EXECUTE:
                waits_module.begin(record, atom, time.time() if self.now is None else self.now)
        events = _StoredTaskEvents if self._kept else _TaskEvents
        call.events = events(self, node, not (self._in_process or call.local), record.attempt)
        call.captures = self._keeps_logs
        if again:
            self._earlier.take_up(call, record)
        if self._fail_early and self._fails_before_start(call):
            return None
        return self._prepare(call, atom, record)

    def _begin_map(self, call: MapCall, record: models.AtomDetail) -> Call | None:
        """`begin` for a Map, or go on with what an earlier run left of it, under its number."""
        attempt = record.attempt
        recovered = self._earlier.number_items(record, call.task, call.action)
        if record.attempt != attempt:
            record.submitted = self.now
        self._enter(record, call.task, call.action)
        if self._fails_before_start(call):
            return None
        outcome: calls.Outcome | None
        try:
            outcome = self.maps.begin(call, record, recovered)
        except exceptions.NotFound as error:
            outcome = calls.Outcome(_failed_to_begin(record.name, call.action, error))
        except Exception as error:
            outcome = calls.Outcome(ft.Failure.from_exception(error))
        if outcome is None:
            return call
        self.failed_before_submit.append((call, outcome))
        return None

    def _enter(self, record: models.AtomDetail, atom: Any, action: calls.Action) -> None:
        """Enter RUNNING or REVERTING, and forget what an earlier attempt told while it ran."""
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
            # Whoever was under way when its scope was given up has not been told so far.
            record.intention = states.REVERT
        if self._kept:
            self._storage.writer.mark(record)
        self._add_event(record, atom, record.state, old_state, NO_RESULT)

    def _fails_before_start(self, call: Call) -> bool:
        """Let an execution end before it began, if its deciders could not be asked."""
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
                # It failed for want of arguments: nothing was done, so there is nothing to undo.
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
        """Take out the calls that ended before they could be submitted."""
        found, self.failed_before_submit = self.failed_before_submit, []
        return found

    def finish(self, call: Call, outcome: calls.Outcome) -> str:
        """Store an outcome; return the state the atom enters by it."""
        self._interrupted.discard(call.node)
        record = self._record(call.node)
        value = self._storage.keepable(outcome) if self._kept else outcome.value
        executed = call.action == calls.EXECUTE
        old_state = record.state
        if outcome.started is not None or outcome.worker not in (None, record.worker):
            record.worker, record.started = outcome.worker, outcome.started
        record.ended = outcome.ended  # what was given up keeps who began it, and when
        if record.incidents and outcome.worker not in (None, calls.LOCAL):
            record.set_incident_worker(outcome.worker)
        atom: Any = self._plan.items[call.node]
        if isinstance(value, ft.Failure):
            state = states.FAILURE if executed else states.REVERT_FAILURE
            value.belongs_to(atom._home())
        else:
            state = states.SUCCESS if executed else states.REVERTED
            record.progress = None
        self._storage.put(record, state, value)
        if state == states.SUCCESS and atom.save_as:
            _warn_if_short(atom, value)
        if self._held_events and record.name in self._held_events:
            self.events.append(self._held_events.pop(record.name))
        self._add_event(record, atom, state, old_state, value)
        return state

    def failure(self, node: int) -> ft.Failure:
        """What an atom failed with, in an earlier run that did not resolve it."""
        failure = self._record(node).failure
        assert failure is not None
        return failure

    def give_back(self, node: int) -> bool:
        """Undo `begin` of what did not start after all; the attempt number stays used.

        Without effect on an atom that is not begun, and on a Map that is under way; and on what an
        earlier run may have started (then True): that has to come to its end, and may be undone.
        """
        if node in self.maps.running:
            return False
        if self._earlier.keeps(node) or node in self._interrupted:
            return True
        record = self._record(node)
        old_state = record.state
        if old_state == states.RUNNING:
            # A retry that tried before is still to be reverted, if it comes to that.
            tried = isinstance(record, models.RetryDetail) and record.results
            record.state = states.RETRYING if tried else states.PENDING
        elif old_state == states.REVERTING:
            record.state = states.FAILURE if record.failure is not None else states.SUCCESS
        else:
            return False
        if record.started is None:
            record.worker = None  # who had it, and began nothing, has it no more
        self._storage.writer.mark(record)
        if self._held_events.pop(record.name, None) is None:
            self._add_event(record, self._plan.items[node], record.state, old_state, NO_RESULT)
        return False

    def give_back_waits(self) -> None:
        """Whatever waited for a signal when an earlier run died has not started: it waits again."""
        for node in self._waiting:
            if self._record(node).state == states.RUNNING:
                self.give_back(node)

    def begin_again(self, node: int, now: float, over: bool) -> float:
        """A retry decided to run its flow again, and the flow is undone: enter RETRYING.

        Returns how many seconds it has to wait before it executes; called again after that wait,
        with `over`.  `now` is in unix seconds.
        """
        record = self._record(node)
        if record.state != states.RETRYING:
            old_state, record.state = record.state, states.RETRYING
            record.intention = states.EXECUTE
            self._storage.writer.mark(record)
            self._add_event(record, self._plan.items[node], states.RETRYING, old_state, NO_RESULT)
        try:
            return self.retries.backoff_left(node, now, over)
        except Exception as error:
            self.fail_before_start(node, error)
            return 0.0

    # -- many at once ---------------------------------------------------------------------------

    def intend(self, changes: Iterable[tuple[int, str]]) -> None:
        """Store what the scheduler means to do with atoms from now on."""
        for node, intention in changes:
            record = self._record(node)
            if record.intention != intention:
                record.intention = intention
                self._storage.writer.mark(record)

    def give_up(self, changes: Iterable[tuple[int, str]], why: control.GivenUp, now: float) -> None:
        """`intend`, because the flow is given up: whoever runs it next shall know."""
        self.intend(changes)
        self._storage.update_flow_metadata({why.key: why.record(now)})

    @property
    def given_up_before(self) -> control.GivenUp | None:
        """Why an earlier run gave the flow up, if it did."""
        return control.recorded(self._storage.flow_meta)

    def ignore(self, nodes: Iterable[int]) -> None:
        """Deciders left these atoms out."""
        for node in nodes:
            record = self._record(node)
            old_state, record.state = record.state, states.IGNORE
            record.intention = states.IGNORE
            self._storage.writer.mark(record)
            self._add_event(record, self._plan.items[node], states.IGNORE, old_state, NO_RESULT)

    def reset(self, nodes: Iterable[int]) -> None:
        """Back to PENDING, with results and failures forgotten; attempt numbers go on."""
        for node in nodes:
            record = self._record(node)
            old_state = record.state
            self._fail_early.pop(node, None)
            untouched = old_state == states.PENDING and record.intention == states.EXECUTE
            if untouched and node not in self._waiting:  # that may have waited, and was given back
                continue
            self.retries.clear_backoff(record)
            self._storage.reset(record.name)
            self._add_event(record, self._plan.items[node], states.PENDING, old_state, NO_RESULT)

    # -- deciders -------------------------------------------------------------------------------

    def vote(self, ballot: Collection[plan_module.Edge]) -> list[plan_module.Edge]:
        """Ask the deciders of these links, which lead to one target; return those that said no.

        Every decider gets the results of all the atoms among the sources, by name.  What a decider
        raises passes through.
        """
        history: dict[str, Any] = {}
        for edge in ballot:
            if edge.source >= 0:
                name = self._record(edge.source).name
                history[name] = self._storage.get_execute_result(name)
        return [edge for edge in ballot if not edge.decider(history=history)]

    def fail_before_start(self, node: int, error: BaseException) -> None:
        """Let a target whose deciders could not be asked fail when it begins."""
        failure = ft.Failure.from_exception(error)
        plan = self._plan
        inside: Collection[int] = (node,)
        if plan.kinds[node] == plan_module.FLOW:
            inside = range(node, plan.end[node])
        self._fail_early.update((n, failure) for n in inside if plan.is_atom(n))

    # -- telling --------------------------------------------------------------------------------

    def take_incidents(self) -> None:
        """Let what came by now be among the `events`, before all that is kept is written."""
        if self._incidents is not None and self._incidents.untold:
            self.events[:0] = self._incidents.take()  # of what is told to run already

    def deliver(self, stopped: Callable[[], bool] | None = None) -> None:
        """Tell the listeners what was written by now.

        As soon as `stopped` is true, they do not hear of atoms that began and did not end: those
        are about to be given back, and then they do not hear of that either.
        """
        while self.events:
            events, self.events = self.events, []
            for event in events:
                if (
                    isinstance(event, StateEvent)
                    and event.state == event.record.state
                    and stopped is not None
                    and event.state in _BEGUN
                    and stopped()
                ):
                    self._held_events[event.record.name] = event
                else:
                    event.tell(self._notifier if self._topics else None)

    def _add_event(
        self, record: models.AtomDetail, atom: Any, state: str, old_state: str | None, result: Any
    ) -> None:
        if (
            self._topics
            or getattr(atom, "_listeners", None) is not None
            or getattr(type(atom), "update_progress", _UPDATE) is not _UPDATE
        ):
            # The record goes on changing before this is told.
            run = record.last_attempt if result is not NO_RESULT else None
            self.events.append(StateEvent(record, atom, state, old_state, result, run))

    def _keep_log(self, node: int, attempt: int, index: int, details: dict[str, Any]) -> None:
        """Store what a task logged, or an item of a Map (else `index` is -1); from any thread."""
        if self._log_allowance is None or self._storage.writer.lease is None:  # the run is over
            return
        lines = task_logs.lines_of(details)
        if lines and (lines := self._log_allowance.take((node, attempt, index), lines)):
            chunk = models.LogChunk(self._record(node).uuid, attempt, index, lines)
            self._storage.writer.mark_log(chunk)
            self._on_progress()

    def _local_event(self, node: int, event_type: str, details: dict[str, Any]) -> None:
        if event_type != task_module.EVENT_UPDATE_PROGRESS:
            return
        progress = details.get("progress")
        if isinstance(progress, int | float) and abs(progress) < math.inf:
            rest = {key: value for key, value in details.items() if key != "progress"}
            if not self._kept:
                self._storage.set_task_progress(self._plan.names[node], progress, rest)
            elif self._storage.writer.lease is not None:  # the run is not over
                self._storage.set_task_progress(self._plan.names[node], progress, rest)
                self._on_progress()

    def _remote_event(self, node: int, event_type: str, details: dict[str, Any]) -> None:
        self._local_event(node, event_type, details)
        atom: Any = self._plan.items[node]
        if atom._listeners is not None:
            atom.notifier.notify(event_type, details)

    def item_events(
        self, node: int, attempt: int, item: int, task: task_module.Task, local: bool
    ) -> _ItemEvents | None:
        """What takes what an item of a Map tells."""
        remote = not (self._in_process or local)
        if not (remote or self._keeps_logs):
            return None
        return _ItemEvents(self, node, remote, attempt, item, task)

    # -- helpers --------------------------------------------------------------------------------

    def record(self, node: int) -> models.AtomDetail:
        """What is known of an atom."""
        return self._record(node)

    def _record(self, node: int) -> models.AtomDetail:
        record = self._storage.records[node]
        assert record is not None
        return record


class _TaskEvents:
    """Takes what one atom tells while it runs; most tell nothing, so it is made of little."""

    __slots__ = ("_attempt", "_lifecycle", "_node", "_remote")

    _item = -1

    def __init__(self, lifecycle: AtomLifecycle, node: int, remote: bool, attempt: int) -> None:
        self._lifecycle = lifecycle
        self._node = node
        self._remote = remote
        self._attempt = attempt

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        hear = self._lifecycle._remote_event if self._remote else self._lifecycle._local_event
        hear(self._node, event_type, details)

    def incident(self, event: str, worker: str | None) -> None:
        """See `Incidents.add`."""
        incidents = self._lifecycle._incidents
        if incidents is not None:
            incidents.add(self._node, self._attempt, event, worker, self._item)


class _StoredTaskEvents(_TaskEvents):
    """The same where records are kept: also that it began, for those who look at the store."""

    __slots__ = ()

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if event_type == task_logs.EVENT:
            self._lifecycle._keep_log(self._node, self._attempt, -1, details)
        else:
            super().__call__(event_type, details)

    def began(self, worker: str, written: bool = True) -> None:
        """A worker has begun it just now; from any thread.

        It is `written` with what is written next: the outcome says all of this again.
        """
        lifecycle = self._lifecycle
        record = lifecycle._record(self._node)
        under_way = record.state in _BEGUN and record.attempt == self._attempt
        if under_way and record.started is None:
            record.worker, record.started = worker, time.time()
            if record.incidents:
                record.set_incident_worker(worker)
            if written:
                lifecycle._storage.writer.mark(record)

    def taken(self, worker: str) -> None:
        """A worker has it, and perhaps no slot free for it; from any thread."""
        lifecycle = self._lifecycle
        record = lifecycle._record(self._node)
        under_way = record.state in _BEGUN and record.attempt == self._attempt
        if under_way and record.started is None and record.worker != worker:
            record.worker = worker
            lifecycle._storage.writer.mark(record)


class _ItemEvents(_TaskEvents):
    """Takes what one item of a Map tells; of what is told elsewhere, its task's listeners hear."""

    __slots__ = ("_item", "_task")

    def __init__(
        self,
        lifecycle: AtomLifecycle,
        node: int,
        remote: bool,
        attempt: int,
        item: int,
        task: task_module.Task,
    ) -> None:
        super().__init__(lifecycle, node, remote, attempt)
        self._item = item
        self._task = task

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if event_type == task_logs.EVENT:
            self._lifecycle._keep_log(self._node, self._attempt, self._item, details)
        elif self._remote and self._task._listeners is not None:
            self._task.notifier.notify(event_type, details)


_BEGUN: Final = frozenset({states.RUNNING, states.REVERTING})


def _failed_to_begin(name: str, action: calls.Action, error: Exception) -> ft.Failure:
    problem = exceptions.NotFound(f"Atom {name!r} cannot {action}: {error}")
    problem.__cause__ = error
    return ft.Failure.from_exception(problem)


def _warn_if_short(atom: task_module.Task, value: Any) -> None:
    for name, index in atom.save_as.items():
        if index is not None and arguments.element(value, index) is arguments.MISSING:
            LOG.warning(
                "Atom %r promised %r (part %r of its result), but returned %s",
                atom.name,
                name,
                index,
                type(value).__name__,
            )
