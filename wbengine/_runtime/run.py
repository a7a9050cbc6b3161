"""The run loop: it connects the scheduler, the records, the executor and the listeners.

Each iteration begins the ready atoms (SCHEDULING), waits for an event (WAITING) and handles the
events that arrived (ANALYZING). The collaborators return values; none of them refers to the run.

Invariants, including after a crash (with a durability below `saving.EACH` the store may be behind):

- RUNNING (or REVERTING) and the attempt number are written before the task is submitted.
- A result is written before the atoms that depend on it are submitted.
- Listeners are notified of a change after it is written, in the order of the changes.
- Only the thread of the loop changes scheduler state. Events of other threads arrive in the inbox.
  Requests to stop are in `StopSignal`, which puts an event into the inbox. The loop polls nothing.
- The executor may forget an outcome (`retire`) after that outcome is written.
- The loop blocks until the next event or the earliest deadline, so a delayed task never delays
  another.
"""

from __future__ import annotations

import math
import queue
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wbengine import states
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks, forks
from wbengine._concurrency.crash_points import crashpoint
from wbengine._runtime import atom_lifecycle, retry_decisions, saving
from wbengine._runtime import plan as plan_module
from wbengine._runtime import scheduler as scheduler_module
from wbengine._runtime.control import (
    DEADLINE,
    CancelRequest,
    GivenUp,
    InFlight,
    Parking,
    StopSignal,
    is_cancellable,
)
from wbengine._runtime.deadlines import MAX_WAIT_SECONDS
from wbengine._runtime.gates.chain import GateChain
from wbengine._runtime.inbox import (
    Event,
    Finished,
    Inbox,
    IterationInterrupted,
    PausesChanged,
    PermitsGranted,
    ProgressReported,
    SignalsReceived,
    StopRequested,
    Withdrawn,
)
from wbengine._runtime.maps import is_item
from wbengine._runtime.node_calls import Call, RetryCall
from wbengine._runtime.workflow_call import WorkflowCall, is_step
from wbengine.persistence import models
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._runtime.workflows.manager import Workflows

__all__ = ["MAX_ATOMS_PER_ITERATION", "MAX_ATOMS_PER_SHORT_ITERATION", "Run"]


@dataclass(slots=True)
class Stats:
    """Counters of a run. The run loop writes them; any thread may read them at any time."""

    #: Creation of the run and end of its executor, on the monotonic clock.
    began: float
    ended: float | None = None
    completed: int = 0
    withdrawn: int = 0
    #: Number of failures that arrived after the run was over. The next run resolves them.
    discarded: int = 0
    #: Seconds that the loop spent in each state, if they are measured.
    seconds_per_state: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


_TIMED_STATES: Final = (states.RESUMING, states.SCHEDULING, states.WAITING, states.ANALYZING)

#: Maximum number of atoms that begin in one iteration. It bounds the memory of very wide flows and
#: the delay of notifications to listeners.
MAX_ATOMS_PER_ITERATION: Final = 4096

#: The maximum for executors that run tasks in the thread of the loop, without a store. It is lower,
#: so that fewer objects exist at a time than start a garbage collection (700): the objects
#: of an iteration are not moved to older generations, whose collections read the whole flow.
MAX_ATOMS_PER_SHORT_ITERATION: Final = 64


class Run:
    """A single run of a plan: `run_iter` is called once."""

    def __init__(
        self,
        plan: plan_module.Plan,
        scheduler: scheduler_module.Scheduler,
        lifecycle: atom_lifecycle.AtomLifecycle,
        saver: saving.Saver,
        executor: calls.TaskExecutor,
        inbox: Inbox,
        gates: GateChain,
        *,
        never_resolve: bool,
        defer_reverts: bool,
        clock: clocks.Clock = clocks.SYSTEM,
        parking: Parking | None = None,
        workflows: Workflows | None = None,
    ) -> None:
        self._plan = plan
        self._gates = gates
        self._parking = parking
        self._scheduler = scheduler
        self._lifecycle = lifecycle
        self._maps = lifecycle.maps
        self._workflows = workflows
        self._executor = executor
        self.inbox: Final = inbox
        self._clock = clock
        self._never_resolve = never_resolve
        self._in_flight = InFlight(executor)
        # Calls that began in this iteration and were not submitted yet, and all their nodes.
        self._begun: list[Call] = []
        self._beginning: list[int] = []
        # Calls of this iteration that the executor has not received yet.
        self._unsent: deque[Call] = deque()
        #: May be used from any thread.
        self.stop_signal = StopSignal(executor, inbox, self._in_flight)
        # After a failure that is not resolved, or a failed revert: the remaining atoms must not
        # run.
        self._broken = False
        self.stats = Stats(clock.monotonic())
        self.end_reason: GivenUp | None = None
        self._saver = saver
        self._defer_reverts = defer_reverts
        # Whether the run reverts a flow that had succeeded.
        self._undoes = False
        # With a store, the changes of a whole iteration are written together.
        short = executor.immediate and not saver.has_store
        self._max_atoms = MAX_ATOMS_PER_SHORT_ITERATION if short else MAX_ATOMS_PER_ITERATION
        self._arrived: deque[Event] = deque()
        #: The state entered last; after the run, its final state.
        self.state: str = states.UNDEFINED

    @property
    def errors(self) -> Mapping[str, ft.Failure]:
        """Errors of the run itself (for example invalid decisions of retry controllers)."""
        return self._lifecycle.retries.errors

    def statistics(self) -> dict[str, Any]:
        """Return the figures of `Engine.statistics`. May be called from any thread."""
        stats, scheduler = self.stats, self._scheduler
        ended = stats.ended if stats.ended is not None else self._clock.monotonic()
        spent = stats.seconds_per_state
        return {
            "seconds_per_state": {name.lower(): spent.get(name, 0.0) for name in _TIMED_STATES},
            "active_for": ended - stats.began,
            "completed": stats.completed,
            "incomplete": scheduler.in_flight,
            "awaiting": scheduler.waiting,
            "withdrawn": stats.withdrawn,
            "discarded_failures": stats.discarded,
        }

    def run_iter(
        self, timeout: float | None = None, deadline: float | None = None, *, measure: bool = True
    ) -> Iterator[str]:
        """Continue from the records; yield each state entered, the final state last.

        :param timeout: maximum seconds of each single wait; the run itself goes on.
        :param deadline: moment on the monotonic clock at which unfinished atoms are cancelled.
        :param measure: record the seconds of each state in `stats`.
        """
        self.stop_signal.begin()
        if timeout is not None:
            timeout = min(timeout, MAX_WAIT_SECONDS)
        if deadline is not None:
            self._gates.timers.set_deadline(deadline)
        # Not an attribute: it would refer to this object, and the cycle would delay its deletion.
        handlers_by_state: dict[str, Callable[[], str]] = {
            states.RESUMING: self._resume,
            states.SCHEDULING: self._schedule,
            states.WAITING: lambda: self._wait(timeout),
            states.ANALYZING: self._analyze,
        }
        spent, monotonic = self.stats.seconds_per_state, self._clock.monotonic
        state, since = states.RESUMING, monotonic()
        while state in handlers_by_state:
            self.state = state
            yield state
            pid = forks.current_pid
            try:
                following = handlers_by_state[state]()
            except BaseException as error:
                forks.end_fork(pid, ft.Failure.from_exception(error))
                raise
            if forks.current_pid != pid:  # For example, a listener forked.
                forks.end_fork(pid)
            if measure:
                now = monotonic()
                spent[state] += now - since
                since = now
            state = following
        self.state = state
        yield state

    def is_busy(self) -> bool:
        """Return whether a task or the function of a workflow runs, apart from the loop itself."""
        workflows = self._workflows
        return bool(self._in_flight.submitted or (workflows and workflows.is_computing))

    def abandon(self) -> None:
        """Start nothing more and withdraw calls that have not started, after an error in the loop.

        The caller then stops the executor and calls `collect`.
        """
        self.stop_signal.end()
        if self._workflows is not None:
            self._workflows.halt()
        waiting = self._gates.withdraw_unstarted(range(len(self._plan))).calls
        sent = [*self._unsent, *waiting, *self._withdraw()]
        running = self._workflows.running if self._workflows is not None else ()
        for node in self._beginning:
            if node not in running:
                self._lifecycle.undo_begin(node)
        parts = [call for call in self._begun if is_step(call) or is_item(call)]
        for call in [*parts, *sent]:
            self._undo_call(call)

    def _undo_call(self, call: Call) -> None:
        if is_item(call):
            if call.node in self._maps.running:
                self._maps.return_item(call)
        elif self._workflows is not None and is_step(call):
            self._workflows.return_step(call)
        else:
            self._lifecycle.undo_begin(call.node, call)

    def collect(self) -> None:
        """Save the outcomes that arrived after `abandon`. The next run resolves failures."""
        arrived, lifecycle, maps = self._arrivals(), self._lifecycle, self._maps
        for item in [arrived.popleft() for _ in range(len(arrived))]:
            if isinstance(item, Withdrawn):
                for withdrawn_call in item.calls:
                    self._undo_call(withdrawn_call)
            elif isinstance(item, Finished):
                call, outcome = item
                if calls.interrupted(outcome):
                    continue  # the next run begins this call again
                if lifecycle.never_began(call):
                    self._undo_call(call)
                    continue
                if self._workflows is not None and is_step(call):
                    self._workflows.finish(call, outcome)
                    continue
                if is_item(call):
                    ended = maps.finish(call, outcome)
                    if ended is None:
                        continue
                    call, outcome = ended
                self.stats.discarded += lifecycle.finish(call, outcome) == states.FAILURE
                self.stats.completed += 1
        for node in list(maps.running):
            if not maps.drop(node):
                lifecycle.undo_begin(node)
        if self._workflows is not None:
            for call, has_begun in self._workflows.drop_all():
                if not has_begun:
                    lifecycle.undo_begin(call.node)
        self._save(saving.OVER)

    def _resume(self) -> str:
        self._scheduler.start()
        earlier = self._lifecycle.given_up_before
        if earlier is not None:
            self._undoes = earlier.undone
            # Calls that were in flight then must not run again; they are only reverted.
            self._maps.stop(earlier)
            if self._workflows is not None:
                self._workflows.stop(earlier)
            if earlier.cancelled:
                self._in_flight.granted.append(CancelRequest(None, earlier.reason))
        for node in self._scheduler.unresolved():
            if self._never_resolve:
                self._stop()
            elif self._scheduler.failed(node):
                self._resolve(node, self._lifecycle.failure(node))
        return states.SCHEDULING

    def _schedule(self) -> str:
        self._begin_all()
        if self._lifecycle.failed_before_submit:
            # Before RUNNING is written: a later run does not call the deciders of atoms that ran.
            for ended in self._lifecycle.take_failed_before_submit():
                self._handle_outcome(*ended)
            self.inbox.put(IterationInterrupted())  # Continue without an event.
        if self._gates.may_await_signals:
            self._store_waits()
        self._save(saving.START)
        self._submit()
        if self._saver.saves_iterations and not (self._executor.immediate and self.inbox.qsize()):
            self._save(saving.ITERATION)
        return states.WAITING

    def _wait(self, timeout: float | None) -> str:
        timers, scheduler = self._gates.timers, self._scheduler
        waits_changed = self._gates.may_await_signals and self._store_waits()
        asleep = timers.is_used and not (self.stop_signal.suspending or scheduler.done)
        if self._gates.admission and self._gates.delays_flow:
            asleep = asleep or not scheduler.done
        if self._parking is not None and not self.inbox.qsize() and self._may_park(self._parking):
            self._park(self._parking)
        elif not self.inbox.qsize() and (scheduler.in_flight or asleep):
            if waits_changed:
                self._save(saving.LATE)
            if timers.is_used:
                timeout = timers.wait(self._clock.monotonic(), timeout)
            try:
                # A single C call: an interrupt cannot come between taking an event and storing it.
                self._arrived.extend(map(self.inbox.get, (True,), (timeout,)))
            except queue.Empty:
                pass
        return states.ANALYZING

    def _analyze(self) -> str:
        if self._saver.check is not None:
            self._saver.check()
        suspending = self.stop_signal.suspending
        is_due = self._gates.timers.is_used and self._gates.timers.passed(self._clock.monotonic())
        if is_due and not suspending:
            self._expire()  # first: outcomes that arrive now are too late
        granted = bool(self.stop_signal.requests) and self._grant_requests()
        woken = self._handle_arrivals() or is_due or granted
        if suspending:
            self._gates.timers.clear()
            self._stop_starting()
        if self._maps.running:
            self._finish_idle_maps()
        if self._workflows is not None:
            self._undo_idle_workflows(self._workflows)
        if self._saver.saves_iterations and self._executor.immediate:
            self._save(saving.ITERATION)
        if self._scheduler.done:
            return self._end()
        return states.SCHEDULING if woken or self.stop_signal.suspending else states.WAITING

    def _end(self) -> str:
        self.stop_signal.decide()
        if self.stop_signal.requests:
            self._grant_requests()  # a request to cancel that followed one to suspend
        self._save(saving.OVER)
        if self._broken:
            return states.FAILURE
        return self._scheduler.verdict()

    def _begin_all(self) -> None:
        scheduler, lifecycle, gates, timers = (
            self._scheduler, self._lifecycle, self._gates, self._gates.timers
        )  # fmt: skip
        if (
            self._gates.admission
            and gates.delays_flow
            # Reversions do not wait, except those of flows that had succeeded and had no permit.
            and (self._undoes or not scheduler.reverting)
            and not gates.admit_flow()
        ):
            return
        while not (self.stop_signal.stopping or (timers.is_used and self._overdue())):
            lifecycle.now = self._clock.time()
            released: Sequence[int] = ()
            if self._gates.admission or timers.is_used:
                released = self._release()
            ready = scheduler.take(max(0, self._max_atoms - len(self._begun)))
            if self._gates.admission:
                ready.execute = [*released, *self._admit(ready.execute)]
            if ready.retry:
                retrying = gates.admit_retries(ready.retry)
                for node in sorted({*ready.retry}.difference(retrying)):
                    scheduler.postpone(node)
                for node in retrying:
                    scope = self._plan.scope(node)
                    lifecycle.reset(scheduler.reset_scope(node), scope[1:])
                    self._in_flight.cancelled_nodes.difference_update(scope)
                self._begin(retrying, calls.EXECUTE)
            self._begin(ready.execute, calls.EXECUTE)
            if ready.revert:
                self._begin(ready.revert, calls.REVERT)
            has_run_retries = bool(self._plan.retried) and self._run_own_retries()
            has_ended = self._workflows is not None and self._advance_workflows(self._workflows)
            if not (ready.votes or has_run_retries or has_ended):
                return
            for node in ready.votes:
                self._decide(node)

    def _advance_workflows(self, workflows: Workflows) -> bool:
        """Run the functions of workflows and begin their steps.

        :returns: whether any has ended, or may end now because its steps were withdrawn.
        """
        progress = workflows.advance()
        self._add_begun(*progress.begun)
        for node in progress.ending:
            self._withdraw_node(node)
        for ended_call, outcome in progress.ended:
            self._handle_outcome(ended_call, outcome)
        return bool(progress.ended or progress.ending)

    def _release(self) -> Sequence[int]:
        """Continue with work that gates release now; return the nodes that may begin."""
        work = self._gates.release()
        for node in work.retries:
            self._scheduler.wake(node)
        self._add_begun(*work.calls)
        return work.nodes

    def _add_begun(self, *added: Call) -> None:
        self._begun += added
        self._beginning += (call.node for call in added)

    def _admit(self, nodes: Sequence[int]) -> Sequence[int]:
        """Return the nodes that may begin now. Cancelled nodes do not wait, but are refused."""
        granted = self._in_flight.granted
        if not granted:
            return self._gates.admit_nodes(nodes)
        if any(request.nodes is None for request in granted):
            return nodes
        cancelled = {n for request in granted for n in request.nodes or ()}.intersection(nodes)
        return [
            *(n for n in nodes if n in cancelled),
            *self._gates.admit_nodes([n for n in nodes if n not in cancelled]),
        ]

    def _run_own_retries(self) -> bool:
        """Execute the retry controllers of single tasks that have just begun.

        Their tasks are then submitted in this iteration, in the order of their priorities.

        :returns: whether there were any.
        """
        task_retries: list[RetryCall] = []
        other_calls: list[Call] = []
        retried_tasks = self._plan.retried
        for call in self._begun:
            if isinstance(call, RetryCall) and call.node - 1 in retried_tasks:
                (task_retries if call.action == calls.EXECUTE else other_calls).append(call)
            else:
                other_calls.append(call)
        self._begun = other_calls
        for call in task_retries:
            self._handle_outcome(call, self._lifecycle.retries.run(call))
        return bool(task_retries)

    def _begin(self, nodes: Sequence[int], action: calls.Action) -> None:
        self._beginning += nodes
        begin, begun = self._lifecycle.begin, self._begun
        workflows = self._workflows
        for node in nodes:
            call = begin(node, action)
            if workflows is not None and isinstance(call, WorkflowCall):
                is_reverting = self._scheduler.is_reverting(node)
                if is_reverting and action == calls.EXECUTE:
                    self._in_flight.cancelled_nodes.add(node)
                workflows.begin(call, is_reverting)
            elif call is not None:
                begun.append(call)

    def _decide(self, node: int) -> None:
        ballot = self._scheduler.ballot(node)
        try:
            refusals = self._lifecycle.call_deciders(ballot)
        except Exception as error:
            self._lifecycle.fail_before_start(node, error)
            self._scheduler.approve(node)
        else:
            self._lifecycle.ignore(self._scheduler.decide(node, refusals))

    def _submit(self) -> None:
        begun = self._begun
        tasks = [call for call in begun if isinstance(call, calls.Invocation)]
        retries: list[RetryCall] = []
        if len(tasks) != len(begun):
            retries = [call for call in begun if isinstance(call, RetryCall)]
        if self._maps.running and not self._scheduler.halted:
            is_full = self._gates.is_full if self._gates.admission else None
            events = self._lifecycle.item_events
            tasks += self._maps.refill(self._max_atoms, events, self._clock.time(), is_full)
        if self._maps.running or self._workflows is not None or self._plan.retried:
            tasks.sort(key=lambda call: (-call.priority, call.node))
        self._lifecycle.set_payloads(tasks)
        to_cancel: list[calls.Invocation] = []
        if self._in_flight.granted:
            tasks, to_cancel, refused = self._in_flight.refuse(tasks)
            for call, outcome in refused:
                self.inbox.put(Finished(call, outcome))
        if self._gates.has_call_gates:
            tasks = self._gates.admit_calls(tasks)
        self._unsent = deque([*tasks, *retries])
        self._begun, self._beginning = [], []
        if tasks:
            if self._scheduler.reverting:
                to_cancel = self._in_flight.cancel_recovered(
                    tasks, to_cancel, self._scheduler.is_reverting
                )
            crashpoint("engine.before-submit")
            self._executor.submit_many(self._iter_unsent(len(tasks)), self._done)
            crashpoint("engine.after-submit")
            if to_cancel:
                self._in_flight.cancel(to_cancel)
        for call in self._iter_unsent(len(retries)) if retries else ():
            self.inbox.put(Finished(call, self._lifecycle.retries.run(call)))
        if self._unsent:
            unsent, self._unsent = self._unsent, deque()
            self.inbox.put(Withdrawn(unsent))

    def _iter_unsent(self, count: int) -> Iterator[Any]:
        """Yield unsent calls until the run is stopped or its deadline passes.

        If tasks run in this thread, this is checked and outcomes are handled between two tasks.
        """
        unsent, stop_signal, timers = self._unsent, self.stop_signal, self._gates.timers
        mapping, sent = self._maps.running, self._in_flight.submitted
        tasks = bool(unsent) and isinstance(unsent[0], calls.Invocation)
        immediate, cancellable = self._executor.immediate, self._in_flight.cancellable
        saver, check = self._saver, self._saver.check
        has_other_times = tasks and not self._clock.is_real
        for _ in range(count):
            if check is not None:
                check()
            if not unsent:  # the others wait at a gate
                return
            call: Any = unsent[0]
            if tasks and immediate:
                # before `stopping` is read, so that a concurrent request to cancel sees the call
                sent.add(call)
            if stop_signal.stopping or (timers.is_used and self._overdue()):
                return
            unsent.popleft()
            if mapping and is_item(call) and self._maps.is_stopped(call):
                self.inbox.put(Withdrawn([call]))
            else:
                if has_other_times and call.not_before is not None:
                    call.shift_times(time.monotonic() - self._clock.monotonic())
                yield call
                if immediate:
                    if unsent and saver.is_late:  # without `unsent`, the iteration is over
                        self._catch_up()
                elif tasks:
                    # after the executor received it: earlier, it could not be cancelled there
                    sent.add(call)
                    if call.task.cancel_on_revert and call.action == calls.EXECUTE:
                        cancellable.add(call)

    def _catch_up(self) -> None:
        """Handle outcomes in the middle of a long iteration.

        If all tasks run in this thread, listeners and the store would otherwise receive nothing
        until the end of the iteration.
        """
        # Requests to cancel and the deadline precede the outcomes; the loop handles them in that
        # order.
        is_too_late = self.stop_signal.requests or (self._gates.timers.is_used and self._overdue())
        if not is_too_late and self._handle_arrivals():
            self._save(saving.LATE)
            # The next iteration begins the successors and must not block.
            self.inbox.put(IterationInterrupted())

    def _handle_arrivals(self) -> bool:
        arrived = self._arrivals()
        woken = bool(arrived)
        while arrived:
            event = arrived.popleft()
            match event:
                case Finished():
                    self._handle_outcome(*event)
                case Withdrawn():
                    for call in event.calls:
                        self._undo_begin(call)
                case SignalsReceived() | PermitsGranted() | PausesChanged():
                    if self._gates.on_event(event):
                        self._readmit_unstarted()
                case StopRequested() | ProgressReported() | IterationInterrupted():
                    pass  # The next steps of the iteration read the state.
        return woken

    def _done(self, invocation: calls.Invocation, outcome: calls.Outcome) -> None:
        if invocation.index >= 0 and outcome.failed:
            self._maps.item_failed(invocation)
        self.inbox.put(Finished(invocation, outcome))

    def _handle_outcome(self, call: Call, outcome: calls.Outcome) -> None:
        # checked here to save a call for each task that succeeds
        if isinstance(outcome.value, ft.Failure):
            calls.raise_interruption(outcome)
        if isinstance(call, calls.Invocation):
            self._in_flight.submitted.discard(call)
            self._in_flight.cancellable.discard(call)
            if self._gates.admission:
                self._gates.on_ended(call)
            if call.cancellation.cancelled and self._is_undone(call, outcome):
                if self._saver.retires:
                    self._saver.ended.append(call)
                self._undo_cancelled(call)
                return
        if self._maps.running and is_item(call):
            self._handle_item(call, outcome)
            return
        if self._workflows is not None and is_step(call):
            if self._saver.retires:
                self._saver.ended.append(call)
            self._workflows.finish(call, outcome)
            self.stats.completed += 1
            return
        state = self._lifecycle.finish(call, outcome)
        self.stats.completed += 1
        if self._saver.retires and isinstance(call, calls.Invocation):
            self._saver.ended.append(call)
        node = call.node
        if state == states.SUCCESS:
            self._scheduler.succeeded(node)
        elif state == states.REVERTED:
            self._scheduler.reverted(node)
        elif state == states.FAILURE:
            self._fail(node, outcome.value)
        else:
            self._scheduler.revert_failed(node)
            self._stop()

    def _is_undone(self, call: calls.Invocation, outcome: calls.Outcome) -> bool:
        """Return whether a cancelled call returns to its state before it began."""
        if call.step is None:
            return self._lifecycle.never_began(call)
        return self._executor.immediate and outcome.started is None

    def _handle_item(self, call: calls.Invocation, outcome: calls.Outcome) -> None:
        if self._saver.retires:
            self._saver.ended.append(call)
        ended = self._maps.finish(call, outcome)
        if ended is not None:
            self._handle_outcome(*ended)
        elif not self._scheduler.halted and self._maps.must_withdraw(call.node):
            self._withdraw_node(call.node)

    def _withdraw_node(self, node: int) -> None:
        """Withdraw the items or steps of a node that have not started, and cancel the others."""
        self._in_flight.cancel(self._in_flight.cancellable_of(node))
        self._withdraw_unstarted(range(node, node + 1))
        for withdrawn_call in self._withdraw():
            if withdrawn_call.node == node:
                self._undo_begin(withdrawn_call)
            else:
                self._add_begun(withdrawn_call)

    def _undo_idle_workflows(self, workflows: Workflows) -> None:
        for call, has_begun in workflows.take_idle():
            if has_begun:
                self._scheduler.undo_begin(call.node, has_begun)
            else:
                self._undo_begin(call)

    def _finish_idle_maps(self) -> None:
        while idle := self._maps.idle():
            for call, outcome, has_begun in idle:
                if outcome is not None:
                    self._handle_outcome(call, outcome)
                elif has_begun:
                    self._scheduler.undo_begin(call.node, has_begun)
                else:
                    self._undo_begin(call)

    def _fail(self, node: int, failure: ft.Failure) -> None:
        self._scheduler.failed(node)
        if self._never_resolve:
            self._stop()
        elif not self._in_flight.is_expected(node, failure):
            # Failures in a scope that is being reverted are resolved too: its retry controller
            # needs all of them, and its decision can only extend the scope.
            self._resolve(node, failure)

    def _resolve(self, node: int, failure: ft.Failure) -> None:
        resolution = self._lifecycle.retries.resolve(node, failure, self._defer_reverts)
        self._lifecycle.set_intentions(self._scheduler.apply(resolution))
        self._cancel_in_scope(resolution.scope)

    def _readmit_unstarted(self) -> None:
        """Let everything that has not started pass the gates again."""
        if self._scheduler.halted:
            return
        self._withdraw_unstarted(range(len(self._plan)))
        unsent = self._unsent
        if unsent and self._executor.immediate:  # called during `_iter_unsent`
            tasks = [call for call in unsent if isinstance(call, calls.Invocation)]
            for call in unsent:
                if not isinstance(call, calls.Invocation):
                    self._add_begun(call)  # a retry controller runs in the next iteration
            unsent.clear()
            unsent.extend(self._gates.admit_calls(tasks))
        self._add_begun(*self._withdraw())

    def _withdraw_unstarted(self, scope: range) -> None:
        if not self._gates.admission:
            return
        work = self._gates.withdraw_unstarted(scope)
        for node in work.nodes:
            self._scheduler.undo_begin(node)
        for call in reversed(work.calls):  # items return to the front of their Map
            self._undo_begin(call)

    def _store_waits(self) -> bool:
        """Store what the flow waits for once all of it waits; return whether that changed."""
        if not self._gates.may_change_waits:
            return False
        waiting = self._gates.changed_waits(self._number_in_flight)
        if waiting is None:
            return False
        self._lifecycle.store_waits(waiting)
        return True

    @property
    def _number_in_flight(self) -> int:
        """Number of nodes in flight, with the steps of workflows instead of the workflows."""
        extra = self._workflows.extra_in_flight if self._workflows is not None else 0
        return self._scheduler.in_flight + extra

    def _may_park(self, parking: Parking) -> bool:
        """Return whether nothing runs and nothing is due soon; set `parked` in that case."""
        if (
            parking.parked is not None
            or self.stop_signal.stopping
            or self._scheduler.done
            or not self._may_park_maps()
        ):
            return False
        in_flight = self._number_in_flight + self._maps.extra_in_flight
        parking.parked = self._gates.parked(in_flight, parking.min_seconds)
        return parking.parked is not None

    def _may_park_maps(self) -> bool:
        """Return whether all Maps may be parked if their items wait.

        Looked-up items do not pass the gates, so a paused one would run in a later run.
        """
        return not self._maps.has_idle and not any(
            running.recovered for running in self._maps.running.values()
        )

    def _park(self, parking: Parking) -> None:
        if parking.parked is not None:
            # Before the flow is SUSPENDED, so that the end of a pause finds a parked flow.
            self._lifecycle.store_pauses(pause.pattern for pause in parking.parked.pauses)
            self._lifecycle.store_permit_units(parking.parked.units)
        parking.park()

    def _save(self, moment: int) -> None:
        """Write the changes if the durability includes `moment`, then notify listeners."""
        self._lifecycle.take_incidents()
        self._saver.save(moment)
        if self._lifecycle.events:
            # A listener may suspend or cancel the flow. The calls that have just begun are then
            # undone.
            self._lifecycle.deliver(self._stopping if moment == saving.START else None)
        if self._executor.immediate:
            self._saver.start_interval()

    def _stopping(self) -> bool:
        return self.stop_signal.stopping

    def _arrivals(self) -> deque[Event]:
        """Move events from the inbox to `_arrived`. Unhandled ones stay there for `collect`."""
        arrived, inbox = self._arrived, self.inbox
        arrived.extend(map(inbox.get, (False,) * inbox.qsize()))
        return arrived

    def _overdue(self) -> bool:
        return self._clock.monotonic() >= self._gates.timers.deadline

    def _expire(self) -> None:
        if not self._overdue():
            return
        self._gates.timers.set_deadline(math.inf)
        if not (self._broken or self._scheduler.done):
            self._give_up(DEADLINE)

    def _grant_requests(self) -> bool:
        """End the nodes that requests to cancel name; return whether there were requests.

        A request for a node that has ended has no effect.
        """
        requests = self.stop_signal.requests
        had_requests = bool(requests)
        while requests:
            # the request stays in the queue until it is handled: nothing starts meanwhile
            request = requests[0]
            if self._may_grant(request):
                if not self._broken:
                    # A revert that failed in an earlier run may succeed now.
                    self._scheduler.try_reverts_again()
                    self._give_up(GivenUp(models.CANCELLED, request.reason))
                self._in_flight.granted.append(request)
                self._withdraw_unstarted(range(len(self._plan)))
                for call in self._withdraw():
                    self._undo_begin(call)
                self._in_flight.cancel(self._in_flight.targets(request))
            self.stop_signal.remove_request()
        return had_requests

    def _may_grant(self, request: CancelRequest) -> bool:
        scheduler = self._scheduler
        # Completed atoms can still be reverted as long as the run is not over.
        if (
            scheduler.done
            and not scheduler.halted
            and (self.stop_signal.decided or scheduler.verdict() != states.FAILURE)
        ):
            return False
        return request.nodes is None or not all(map(scheduler.ended, request.nodes))

    def _give_up(self, given_up: GivenUp) -> None:
        if self._never_resolve:
            self.end_reason = given_up
            self._stop()
            return
        changes = self._scheduler.apply(retry_decisions.everything(self._plan))
        # No changes: everything is already being reverted for another reason.
        if changes:
            self.end_reason = given_up
            self._lifecycle.give_up(changes, given_up, self._clock.time())
            self._maps.stop(given_up)
            if self._workflows is not None:
                self._workflows.stop(given_up)
            for call in self._withdraw():
                self._undo_begin(call)
            self._cancel_in_scope(range(len(self._plan)))

    def _cancel_in_scope(self, scope: range) -> None:
        self._withdraw_unstarted(scope)
        if self._maps.running:
            stopped = self._maps.stop_for_revert(scope, self._gates.may_delay_items)
            self._in_flight.cancelled_nodes.update(stopped)
        if self._workflows is not None:
            self._in_flight.cancelled_nodes.update(self._workflows.stop_for_revert(scope))
        cancellable = [call for call in self._in_flight.cancellable if call.node in scope]
        unsent = self._unsent
        if unsent and self._executor.immediate:  # called during `_iter_unsent`
            cancellable += [call for call in unsent if is_cancellable(call) and call.node in scope]
        for call in self._gates.withdraw_calls(
            lambda node, call: node in scope and is_cancellable(call)
        ):
            self._undo_cancelled(call)
        if cancellable:
            self._in_flight.cancel_for_revert(cancellable)

    def _stop(self) -> None:
        self._broken = True
        self._stop_starting()

    def _stop_starting(self) -> None:
        is_first = not self._scheduler.halted
        if is_first:
            self._scheduler.halt()
            self._maps.halt()
            if self._workflows is not None:
                self._workflows.halt()
        self._withdraw_unstarted(range(len(self._plan)))
        begun, self._begun, self._beginning = self._begun, [], []
        for call in [*begun, *self._withdraw()]:
            self._undo_begin(call)
        if is_first:
            self.inbox.put(IterationInterrupted())  # Nothing else may be in flight any more.

    def _withdraw(self) -> list[calls.Invocation]:
        return [*self._gates.withdraw_calls(), *self._executor.withdraw()]

    def _undo_cancelled(self, call: calls.Invocation) -> None:
        """Undo the beginning of a call that was cancelled before it started."""
        if call.step is None:
            self._lifecycle.end_wait(call.node)
        self._undo_begin(call)

    def _undo_begin(self, call: Call) -> None:
        if isinstance(call, calls.Invocation):
            self._in_flight.submitted.discard(call)
            self._in_flight.cancellable.discard(call)
            if self._gates.admission:
                self._gates.on_ended(call)
        if is_item(call):
            self._maps.return_item(call)
            return
        if self._workflows is not None and is_step(call):
            self._workflows.return_step(call)
            return
        if call.node in self._maps.running:
            return  # It begins no item any more, and `_finish_idle_maps` undoes its begin.
        may_have_begun = self._lifecycle.undo_begin(call.node, call)
        self._scheduler.undo_begin(call.node, may_have_begun)
        self.stats.withdrawn += 1
