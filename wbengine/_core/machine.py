"""The run loop: the one place that talks to everything.

A turn: what became ready begins (SCHEDULING), something is awaited (WAITING), what arrived is
finished (ANALYZING).  The parts answer with values; none of them knows the machine.

What holds at any moment, also when the process dies:

- RUNNING (or REVERTING) and the attempt number are written before the task is submitted;
- a result is written before what depends on it is submitted;
- listeners hear of a change after it is written, in the order of the changes;
- only the thread that runs the machine changes scheduler state; outcomes, and whatever else other
  threads have to say, come through one queue, so that nothing is ever polled;
- an executor is told that it may forget an outcome (`retire`) after that outcome is written.

The states are TaskFlow's::

    UNDEFINED -> RESUMING -> SCHEDULING -> WAITING -> ANALYZING -> SCHEDULING ...
                                                               -> GAME_OVER -> an end state
"""

from __future__ import annotations

import functools
import queue
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from automaton import machines, runners

from wbengine import _clock, deciders, states
from wbengine import invocation as calls
from wbengine._core import lifecycle as lifecycle_module
from wbengine._core import plan as plan_module
from wbengine._core import recovery
from wbengine._core import scheduler as scheduler_module
from wbengine.storage import Storage
from wbengine.types import failure as ft

__all__ = ["END_STATES", "META_STATES", "Inbox", "Machine", "Withdrawn", "new_inbox"]

#: States nobody outside sees.
META_STATES: Final = frozenset({states.UNDEFINED, states.GAME_OVER})
END_STATES: Final = (states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED)

#: So many atoms at most are begun in one turn: what a very wide flow holds in memory at a time, and
#: how long listeners wait for the news of a turn, stays bounded.
MOST_PER_TURN: Final = 4096

_START: Final = "start"
_SCHEDULE: Final = "schedule"
_WAIT: Final = "wait"
_ANALYZE: Final = "analyze"
_FINISH: Final = "finish"


class Withdrawn(list[calls.Invocation]):
    """Invocations an executor gave back before they started."""


#: What reaches the machine from other threads: an outcome, something taken back, or (None) only
#: that there is something to write or a wish to stop.
Inbox = queue.SimpleQueue["tuple[lifecycle_module.Call, calls.Outcome] | Withdrawn | None"]


def new_inbox() -> Inbox:
    """Make the queue of one run."""
    return queue.SimpleQueue()


class Machine:
    """One run of one plan.  `run_iter` once; `suspend` from any thread, any time."""

    def __init__(
        self,
        plan: plan_module.Plan,
        scheduler: scheduler_module.Scheduler,
        lifecycle: lifecycle_module.Lifecycle,
        storage: Storage,
        executor: calls.TaskExecutor,
        inbox: Inbox,
        *,
        near: calls.TaskExecutor | None = None,
        never_resolve: bool = False,
        defer_reverts: bool = False,
        clock: _clock.Clock = _clock.SYSTEM,
    ) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._lifecycle = lifecycle
        self._storage = storage
        self._kept = storage.backend is not None
        self._executor = executor
        # Where tasks run that must not leave this process, when `executor` takes them out of it.
        self._near = near
        self._inbox = inbox
        self._never_resolve = never_resolve
        self._defer_reverts = defer_reverts
        self._clock = clock
        self._retires = type(executor).retire is not calls.TaskExecutor.retire
        self._timeout: float | None = None
        self._suspending = False
        # A failure was kept as it is, or a revert failed: what is left must not go on.
        self._broken = False
        # What this turn began, until it is handed to the executor: the calls, and all their nodes.
        self._begun: list[lifecycle_module.Call] = []
        self._beginning: list[int] = []
        self._arrived: deque[Any] = deque()
        self._finished: list[calls.Invocation] = []
        #: Errors of the run itself (of retries that answer nonsense), besides those of atoms.
        self.problems: list[ft.Failure] = []
        #: How many outcomes were handled, and how many calls were taken back.
        self.completed = 0
        self.withdrawn = 0
        #: How many failures arrived when the run was over already; the next run resolves them.
        self.discarded = 0
        #: The latest state entered; after the run, how it ended.
        self.state: str = states.UNDEFINED
        self.seconds_per_state: dict[str, float] = {}

    @property
    def awaiting(self) -> int:
        """How many calls are under way."""
        return self._scheduler.in_flight

    def run(self, timeout: float | None = None, *, measure: bool = True) -> None:
        """`run_iter` to its end."""
        for _ in self.run_iter(timeout, measure=measure):
            pass

    def run_iter(self, timeout: float | None = None, *, measure: bool = True) -> Iterator[str]:
        """Go on from where the records say; yield each state entered, an end state last.

        `timeout` bounds each single wait (then ANALYZING finds nothing and waiting goes on); it
        is no limit for the run.  With `measure`, `seconds_per_state` is kept.
        """
        self._timeout = timeout
        # Not kept: the table refers to the machine, and a cycle would outlive the engine for long.
        runner = runners.FiniteRunner(self._table())
        before = self._clock.monotonic() if measure else 0.0
        spent = self.seconds_per_state
        for old_state, new_state in runner.run_iter(_START):
            assert new_state is not None
            if measure:
                now = self._clock.monotonic()
                if old_state is not None and old_state not in META_STATES:
                    spent[old_state] = spent.get(old_state, 0.0) + now - before
                before = now
            self.state = new_state
            if new_state not in META_STATES:
                yield new_state

    def suspend(self) -> None:
        """Let nothing more start, and take back what has not started; from any thread."""
        self._suspending = True
        self._inbox.put(Withdrawn(self._withdraw()))

    def abandon(self) -> None:
        """After an error in the loop: start nothing more, take back what has not started.

        Afterwards the executor is to be stopped, and `collect` called.
        """
        # The scheduler's part is over: it may have been interrupted anywhere.
        for node in self._beginning:
            self._lifecycle.give_back(node)
        for call in self._withdraw():
            self._lifecycle.give_back(call.node)

    def collect(self) -> None:
        """Save the outcomes that arrived after `abandon`; failures are resolved by the next run."""
        for item in self._arrivals():
            if isinstance(item, Withdrawn):
                for call in item:
                    self._lifecycle.give_back(call.node)
            elif item is not None:
                self.discarded += self._lifecycle.finish(*item) == states.FAILURE
                self.completed += 1
        self._save()

    # -- the reactions: each returns the event that leads to the next state -----------------------

    def _resume(self, old_state: str, new_state: str, event: str) -> str:
        self._scheduler.start()
        for node in self._scheduler.unresolved():
            if self._never_resolve:
                self._stop()
            elif self._scheduler.failed(node):
                record = self._storage.records[node]
                assert record is not None and record.failure is not None
                self._resolve(node, record.failure)
        return _SCHEDULE

    def _schedule(self, old_state: str, new_state: str, event: str) -> str:
        self._lifecycle.listen()
        self._begin_all()
        self._save()
        if self._suspending:  # a listener asked for it, just now
            begun, self._begun, self._beginning = self._begun, [], []
            for call in begun:
                self._give_back(call)
        else:
            self._submit()
        stillborn, self._lifecycle.stillborn = self._lifecycle.stillborn, []
        for ended in stillborn:
            self._inbox.put(ended)
        return _WAIT

    def _wait(self, old_state: str, new_state: str, event: str) -> str:
        if self._scheduler.in_flight:
            try:
                self._arrived.append(self._inbox.get(timeout=self._timeout))
            except queue.Empty:
                pass
        return _ANALYZE

    def _analyze(self, old_state: str, new_state: str, event: str) -> str:
        self._lifecycle.listen()
        woken = False
        for item in self._arrivals():
            woken = True
            if isinstance(item, Withdrawn):
                for call in item:
                    self._give_back(call)
            elif item is not None:
                self._settle(*item)
        if self._suspending:
            self._stop_starting()
        if self._scheduler.done:
            return _FINISH
        return _SCHEDULE if woken or self._suspending else _WAIT

    def _end(self, old_state: str, new_state: str, event: str) -> str:
        self._save()
        if self._broken:
            return states.FAILURE
        return self._scheduler.verdict()

    # -- turns ----------------------------------------------------------------------------------

    def _begin_all(self) -> None:
        scheduler, begin, begun = self._scheduler, self._lifecycle.begin, self._begun
        while not self._suspending:
            turn = scheduler.take(MOST_PER_TURN)
            self._beginning += turn.retry + turn.execute + turn.revert
            for node in turn.retry:
                self._lifecycle.begin_again(node)
                self._lifecycle.reset(scheduler.reset_scope(node))
            begun += filter(None, [begin(node, calls.EXECUTE) for node in turn.retry])
            begun += filter(None, [begin(node, calls.EXECUTE) for node in turn.execute])
            begun += filter(None, [begin(node, calls.REVERT) for node in turn.revert])
            if not turn.votes:
                return
            for node in turn.votes:
                self._vote(node)

    def _vote(self, node: int) -> None:
        try:
            nays = self._lifecycle.vote(node)
        except Exception as error:
            self._lifecycle.doom(node, error)
            nays = []
        if nays:
            self._lifecycle.ignore(self._scheduler.ignore(node, deciders.pick_widest(nays)))
        else:
            self._scheduler.approve(node)

    def _submit(self) -> None:
        begun, self._begun, self._beginning = self._begun, [], []
        tasks = [call for call in begun if isinstance(call, calls.Invocation)]
        retries = len(tasks) != len(begun)
        if self._near is not None:
            local = [call for call in tasks if call.task.local]
            self._near.submit_many(self._while_wanted(local), self._done)
            tasks = [call for call in tasks if not call.task.local] if local else tasks
        if tasks:
            self._executor.submit_many(self._while_wanted(tasks), self._done)
        if retries:
            for call in begun:
                if isinstance(call, lifecycle_module.RetryCall):
                    self._inbox.put((call, self._lifecycle.run_retry(call)))

    def _while_wanted(self, tasks: list[calls.Invocation]) -> Iterator[calls.Invocation]:
        """Stop in the middle of a turn when somebody suspends: the executor cannot know."""
        for place, call in enumerate(tasks):
            if self._suspending:
                self._inbox.put(Withdrawn(tasks[place:]))
                return
            yield call

    def _done(self, invocation: calls.Invocation, outcome: calls.Outcome) -> None:
        self._inbox.put((invocation, outcome))

    def _settle(self, call: lifecycle_module.Call, outcome: calls.Outcome) -> None:
        state = self._lifecycle.finish(call, outcome)
        self.completed += 1
        if self._retires and isinstance(call, calls.Invocation) and not call.task.local:
            self._finished.append(call)
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

    def _fail(self, node: int, failure: ft.Failure) -> None:
        self._scheduler.failed(node)
        if self._never_resolve:
            self._stop()
        else:
            # Also when its scope is being undone already: its retry has to know of every failure,
            # and may think differently of this one (which can only widen what is undone).
            self._resolve(node, failure)

    def _resolve(self, node: int, failure: ft.Failure) -> None:
        ask = functools.partial(self._lifecycle.ask, failure)
        try:
            resolution = recovery.resolve(self._plan, node, ask, defer_reverts=self._defer_reverts)
        except Exception as error:
            self.problems.append(ft.Failure.from_exception(error))
            resolution = recovery.everything(self._plan)
        self._lifecycle.intend(self._scheduler.apply(resolution))

    def _stop(self) -> None:
        self._broken = True
        self._stop_starting()

    def _stop_starting(self) -> None:
        self._scheduler.halt()
        for call in self._withdraw():
            self._give_back(call)

    def _give_back(self, call: lifecycle_module.Call) -> None:
        self._lifecycle.give_back(call.node)
        self._scheduler.give_back(call.node)
        self.withdrawn += 1

    def _withdraw(self) -> list[calls.Invocation]:
        near = self._near.withdraw() if self._near is not None else []
        return [*near, *self._executor.withdraw()]

    def _save(self) -> None:
        if self._kept:
            self._storage.flush()
        if self._finished:
            finished, self._finished = self._finished, []
            self._executor.retire(finished)
        self._lifecycle.deliver()

    def _arrivals(self) -> Iterator[Any]:
        """What arrived by now, one by one; what is not handled stays for `collect`."""
        arrived, get, empty = self._arrived, self._inbox.get_nowait, self._inbox.empty
        while not empty():
            arrived.append(get())
        while arrived:
            yield arrived.popleft()

    # -- the table ------------------------------------------------------------------------------

    def _table(self) -> machines.FiniteMachine:
        fsm = machines.FiniteMachine()
        for name in (
            states.UNDEFINED,
            states.RESUMING,
            states.SCHEDULING,
            states.WAITING,
            states.ANALYZING,
            states.GAME_OVER,
        ):
            fsm.add_state(name)
        for name in END_STATES:
            fsm.add_state(name, terminal=True)
            # The event that leads to an end state is called like it.
            fsm.add_transition(states.GAME_OVER, name, name)
        fsm.default_start_state = states.UNDEFINED
        for start, end, event, reaction in (
            (states.UNDEFINED, states.RESUMING, _START, self._resume),
            (states.RESUMING, states.SCHEDULING, _SCHEDULE, self._schedule),
            (states.SCHEDULING, states.WAITING, _WAIT, self._wait),
            (states.WAITING, states.ANALYZING, _ANALYZE, self._analyze),
            (states.ANALYZING, states.SCHEDULING, _SCHEDULE, None),
            (states.ANALYZING, states.WAITING, _WAIT, None),
            (states.ANALYZING, states.GAME_OVER, _FINISH, self._end),
        ):
            fsm.add_transition(start, end, event)
            if reaction is not None:
                fsm.add_reaction(end, event, reaction)
        fsm.freeze()
        return fsm
