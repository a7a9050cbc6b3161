"""The run loop: the one place that talks to everything.

A turn: what became ready begins (SCHEDULING), something is awaited (WAITING), what arrived is
finished (ANALYZING).  The parts answer with values; none of them knows the machine.

What holds at any moment, also when the process dies (with a durability less than `saving.EACH` the
store may be behind):

- RUNNING (or REVERTING) and the attempt number are written before the task is submitted;
- a result is written before what depends on it is submitted;
- listeners hear of a change after it is written, in the order of the changes;
- only the thread that runs the machine changes scheduler state; outcomes, and whatever else other
  threads have to say, come through one queue, so that nothing is ever polled;
- an executor is told that it may forget an outcome (`retire`) after that outcome is written;
- who waits for a time (a retry, the deadline of the run) holds up nobody: the one wait of a turn
  ends when the first of them is due.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from wbengine import _clock, states
from wbengine import invocation as calls
from wbengine._crash import crashpoint
from wbengine.runtime import lifecycle as lifecycle_module
from wbengine.runtime import plan as plan_module
from wbengine.runtime import run_states, salvage, saving
from wbengine.runtime import scheduler as scheduler_module
from wbengine.runtime import timers as timers_module
from wbengine.runtime.cancelling import Wish
from wbengine.runtime.ending import Ending
from wbengine.runtime.inbox import Arrival, Inbox, Withdrawn
from wbengine.runtime.maps import is_item
from wbengine.types import failure as ft

__all__ = ["MOST_PER_TURN", "Machine"]

#: So many atoms at most are begun in one turn: what a very wide flow holds in memory at a time, and
#: how long listeners wait for the news of a turn, stays bounded.
MOST_PER_TURN: Final = 4096


class Machine(Ending):
    """One run of one plan: `run_iter`, once."""

    def __init__(
        self,
        plan: plan_module.Plan,
        scheduler: scheduler_module.Scheduler,
        lifecycle: lifecycle_module.Lifecycle,
        saver: saving.Saver | None,
        executor: calls.TaskExecutor,
        inbox: Inbox,
        *,
        never_resolve: bool = False,
        defer_reverts: bool = False,
        clock: _clock.Clock = _clock.SYSTEM,
    ) -> None:
        super().__init__(
            plan, scheduler, lifecycle, executor, inbox, clock, never_resolve=never_resolve
        )
        self._retries = lifecycle.retries
        self._saver = saver
        # A flow that is not kept is nobody else's.
        self._check = None if saver is None else saver.check
        self._patience = saving.PATIENCE if saver is None else saver.patience
        self._by_turns = saver is not None and saver.by_turns
        self._defer_reverts = defer_reverts
        self._immediate = executor.immediate
        self._retires = type(executor).retire is not calls.TaskExecutor.retire
        self._timeout: float | None = None
        self._arrived: deque[Arrival] = deque()
        self._finished: list[calls.Invocation] = []
        # When what happened was last written and told.
        self._saved = 0.0
        #: Errors of the run itself (of retries that answer nonsense), besides those of atoms.
        self.problems = self._retries.problems
        #: The latest state entered; after the run, how it ended.
        self.state: str = states.UNDEFINED

    def run_iter(
        self, timeout: float | None = None, deadline: float | None = None, *, measure: bool = True
    ) -> Iterator[str]:
        """Go on from where the records say; yield each state entered, an end state last.

        `timeout` bounds each single wait (then ANALYZING finds nothing and waiting goes on); it
        is no limit for the run.  `deadline` is one: a moment on the machine's clock at which what
        is unfinished is given up.  With `measure`, `figures` tell how long each state took.
        """
        self.brake.take_hold()
        self._timeout = None if timeout is None else min(timeout, timers_module.LONGEST)
        if deadline is not None:
            self._timers = timers_module.Timers(deadline)
        # Not kept: it would refer back to this object, and a cycle outlives the engine for long.
        reactions: dict[str, run_states.Reaction] = {
            states.RESUMING: self._resume,
            states.SCHEDULING: self._schedule,
            states.WAITING: self._wait,
            states.ANALYZING: self._analyze,
            states.GAME_OVER: self._end,
        }
        spent, before = self.figures.seconds_per_state, self._clock.monotonic()
        state, event = states.UNDEFINED, run_states.START
        exits, monotonic = run_states.NEXT, self._clock.monotonic
        while True:
            earlier, state = state, exits[state][event]
            if measure:
                now = monotonic()
                spent[earlier] += now - before
                before = now
            self.state = state
            if state not in run_states.META_STATES:
                yield state
            if state not in reactions:
                return
            event = reactions[state]()

    def abandon(self) -> None:
        """After an error in the loop: start nothing more, take back what has not started.

        Afterwards the executor is to be stopped, and `collect` called.
        """
        self.brake.let_go()
        sent = [*self._unsent, *self._executor.withdraw()]
        for node in [*self._beginning, *(call.node for call in sent)]:
            self._lifecycle.give_back(node)

    def collect(self) -> None:
        """Save the outcomes that arrived after `abandon`; failures are resolved by the next run."""
        arrived = self._arrivals()
        found = salvage.collect(self._lifecycle, (arrived.popleft() for _ in range(len(arrived))))
        self.figures.completed += found.completed
        self.figures.discarded += found.failed
        self._save(saving.OVER)

    # -- the reactions: each returns the event that leads to the next state -----------------------

    def _resume(self) -> str:
        self._scheduler.start()
        earlier = self._lifecycle.given_up_before
        if earlier is not None:
            # What was under way then is not to run again, only to be undone.
            self._maps.stop(earlier)
            if earlier.cancelled:
                self._cancelling.granted.append(Wish(None, earlier.reason))
        for node in self._scheduler.unresolved():
            if self._never_resolve:
                self._stop()
            elif self._scheduler.failed(node):
                self._resolve(node, self._lifecycle.failure(node))
        return run_states.SCHEDULE

    def _schedule(self) -> str:
        self._begin_all()
        self._save(saving.START)
        self._submit()
        for ended in self._lifecycle.take_stillborn():
            self._inbox.put(ended)
        if self._by_turns and not (self._immediate and self._inbox.qsize()):
            self._save(saving.TURN)
        return run_states.WAIT

    def _wait(self) -> str:
        timeout, timers = self._timeout, self._timers
        asleep = timers is not None and not (self.brake.suspending or self._scheduler.done)
        if not self._inbox.qsize() and (self._scheduler.in_flight or asleep):
            if timers is not None:
                timeout = timers.wait(self._clock.monotonic(), timeout)
            try:
                # One step: an interruption must not come between taking it out and keeping it.
                self._arrived.extend(map(self._inbox.get, (True,), (timeout,)))
            except queue.Empty:
                pass
        return run_states.ANALYZE

    def _analyze(self) -> str:
        if self._check is not None:
            self._check()
        timers, suspending = self._timers, self.brake.suspending
        due = timers is not None and timers.passed(self._clock.monotonic())
        if due and not suspending:
            self._expire()  # first: what arrives now came too late
        heeded = bool(self.brake.wishes) and self._heed()
        woken = self._take_in() or due or heeded
        if suspending:
            self._timers = None
            self._stop_starting()
        if self._maps.running:
            self._rest()
        if self._by_turns and self._immediate:
            self._save(saving.TURN)
        if self._scheduler.done:
            return run_states.FINISH
        return run_states.SCHEDULE if woken or self.brake.suspending else run_states.WAIT

    def _end(self) -> str:
        self.brake.decide()
        if self.brake.wishes:
            self._heed()  # somebody suspended, and then cancelled
        self._save(saving.OVER)
        if self._broken:
            return states.FAILURE
        return self._scheduler.verdict()

    # -- turns ----------------------------------------------------------------------------------

    def _begin_all(self) -> None:
        scheduler, lifecycle = self._scheduler, self._lifecycle
        while not (self.brake.pulled or (self._timers is not None and self._overdue())):
            lifecycle.now = self._clock.time()
            woken = self._wake() if self._timers is not None else ()
            turn = scheduler.take(MOST_PER_TURN)
            if turn.retry:
                again = [node for node in turn.retry if self._begin_again(node, node in woken)]
                for node in again:
                    lifecycle.reset(scheduler.reset_scope(node))
                    self._cancelling.ending.difference_update(self._plan.scope(node))
                self._begin(again, calls.EXECUTE)
            self._begin(turn.execute, calls.EXECUTE)
            if turn.revert:
                self._begin(turn.revert, calls.REVERT)
            if not turn.votes:
                return
            for node in turn.votes:
                self._vote(node)

    def _begin(self, nodes: Sequence[int], action: calls.Action) -> None:
        self._beginning += nodes
        begin, begun = self._lifecycle.begin, self._begun
        for node in nodes:
            call = begin(node, action)
            if call is not None:
                begun.append(call)

    def _vote(self, node: int) -> None:
        ballot = self._scheduler.ballot(node)
        try:
            nays = self._lifecycle.vote(ballot)
        except Exception as error:
            self._lifecycle.doom(node, error)
            self._scheduler.approve(node)
        else:
            self._lifecycle.ignore(self._scheduler.decide(node, nays))

    def _submit(self) -> None:
        begun = self._begun
        tasks = [call for call in begun if isinstance(call, calls.Invocation)]
        retries: list[lifecycle_module.RetryCall] = []
        if len(tasks) != len(begun):
            retries = [call for call in begun if isinstance(call, lifecycle_module.RetryCall)]
        if self._maps.running and not self._scheduler.halted:
            tasks += self._maps.refill(MOST_PER_TURN, self._clock.time())
            tasks.sort(key=lambda call: (-call.priority, call.node))
        late: list[calls.Invocation] = []
        if self._cancelling.granted:
            tasks, late = self._refuse(tasks)
        self._unsent = deque([*tasks, *retries])
        self._begun, self._beginning = [], []
        if tasks:
            if self._scheduler.reverting:
                self._end_late(tasks, late)
            crashpoint("engine.before-submit")
            self._executor.submit_many(self._while_wanted(len(tasks)), self._done)
            crashpoint("engine.after-submit")
            if late:
                self._cancelling.cancel(late)
        for call in self._while_wanted(len(retries)) if retries else ():
            self._inbox.put((call, self._retries.run(call)))
        if self._unsent:
            unsent, self._unsent = self._unsent, deque()
            self._inbox.put(Withdrawn(unsent))

    def _while_wanted(self, count: int) -> Iterator[Any]:
        """Stop in the middle of a turn when somebody suspends or cancels, or time is up: nobody
        else could.
        """
        unsent, brake, mapping, flying = self._unsent, self.brake, self._maps.running, self._flying
        tasks = bool(unsent) and isinstance(unsent[0], calls.Invocation)
        immediate, check, willing = self._immediate, self._check, self._cancelling.willing
        for _ in range(count):
            if check is not None:
                check()
            call: Any = unsent[0]
            if tasks and immediate:
                flying.add(call)  # before the look: who cancels now sees it
            if brake.pulled or (self._timers is not None and self._overdue()):
                return
            unsent.popleft()
            if mapping and is_item(call) and self._maps.holds_back(call):
                self._inbox.put(Withdrawn([call]))
            else:
                yield call
                if immediate:
                    if unsent:  # else the turn is over anyway
                        self._catch_up()
                elif tasks:
                    flying.add(call)  # not before: nobody can be told of what is not there
                    if call.task.cancel_on_revert and call.action == calls.EXECUTE:
                        willing.add(call)

    def _catch_up(self) -> None:
        """Finish what ended in the middle of a turn, when that takes its time: nobody who watches,
        and no crash, should have to wait for the end of a turn whose tasks all run in this thread.
        """
        if self._clock.monotonic() - self._saved < self._patience:
            return
        # Who cancelled, or gave no more time, did so before it ended.
        late = bool(self.brake.wishes) or (self._timers is not None and self._overdue())
        if not late and self._take_in():
            self._save(saving.LATE)
            # What follows from it is for the next turn, which must not wait for more.
            self._inbox.put(None)

    def _take_in(self) -> bool:
        """Handle what arrived by now; return whether anything did."""
        arrived = self._arrivals()
        woken = bool(arrived)
        while arrived:
            item = arrived.popleft()
            if isinstance(item, Withdrawn):
                for call in item:
                    self._give_back(call)
            elif item is not None:
                self._settle(*item)
        return woken

    def _done(self, invocation: calls.Invocation, outcome: calls.Outcome) -> None:
        if invocation.index >= 0 and outcome.failed:
            self._maps.spoil(invocation)
        self._inbox.put((invocation, outcome))

    def _settle(self, call: lifecycle_module.Call, outcome: calls.Outcome) -> None:
        if isinstance(outcome.value, ft.Failure):  # without a call for each task that succeeds
            calls.raise_interruption(outcome)
        if isinstance(call, calls.Invocation):
            self._flying.discard(call)
            self._cancelling.willing.discard(call)
            if call.cancelled and self._immediate and outcome.started is None:
                self._give_back(call)  # it was told before it began
                return
        if self._maps.running and is_item(call):
            self._settle_item(call, outcome)
            return
        state = self._lifecycle.finish(call, outcome)
        self.figures.completed += 1
        if self._retires and isinstance(call, calls.Invocation):
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

    def _settle_item(self, call: calls.Invocation, outcome: calls.Outcome) -> None:
        if self._retires:
            self._finished.append(call)
        ended = self._maps.finish(call, outcome)
        if ended is not None:
            self._settle(*ended)
        elif not self._scheduler.halted and self._maps.to_withdraw(call.node):
            self._cancelling.cancel(self._cancelling.willing_of(call.node))
            others = self._maps.take_back(call.node, self._executor.withdraw())
            self._begun += others
            self._beginning += [other.node for other in others]

    def _rest(self) -> None:
        """Let go of the Maps that cannot go on: nothing of them is under way any more."""
        while idle := self._maps.idle():
            for call, outcome, begun in idle:
                if outcome is not None:
                    self._settle(call, outcome)
                elif begun:
                    self._scheduler.give_back(call.node, begun)
                else:
                    self._give_back(call)

    def _fail(self, node: int, failure: ft.Failure) -> None:
        self._scheduler.failed(node)
        if self._never_resolve:
            self._stop()
        elif not self._cancelling.expected(node, failure):
            # Also when its scope is being undone already: its retry has to know of every failure,
            # and may think differently of this one (which can only widen what is undone).
            self._resolve(node, failure)

    def _resolve(self, node: int, failure: ft.Failure) -> None:
        resolution = self._retries.resolve(node, failure, self._defer_reverts)
        self._lifecycle.intend(self._scheduler.apply(resolution))
        self._end_early(resolution.scope)

    # -- time -----------------------------------------------------------------------------------

    def _wake(self) -> Collection[int]:
        """Hand out with the next turn the retries whose time has come."""
        assert self._timers is not None
        woken = self._timers.pop(self._clock.monotonic())
        for node in woken:
            self._scheduler.wake(node)
        return set(woken)

    def _begin_again(self, node: int, over: bool) -> bool:
        """A retry was handed out to run its flow again: False when it has to wait first."""
        seconds = self._lifecycle.begin_again(node, self._clock.time(), over)
        if not seconds:
            return True
        self._scheduler.postpone(node)
        if self._timers is None:
            self._timers = timers_module.Timers()
        self._timers.set(node, self._clock.monotonic() + seconds)
        return False

    def _save(self, moment: int) -> None:
        """Write if it is time to, and then let go of what ended; tell what happened."""
        written = self._saver is None or self._saver.save(moment)
        if written and self._finished:
            finished, self._finished = self._finished, []
            crashpoint("engine.before-retire")
            self._executor.retire(finished)
            crashpoint("engine.after-retire")
        if self._lifecycle.notices:
            # Who hears of it may suspend, or cancel: then what began is given back.
            self._lifecycle.deliver(self._pulled if moment == saving.START else None)
        if self._immediate:
            self._saved = self._clock.monotonic()

    def _pulled(self) -> bool:
        return self.brake.pulled

    def _arrivals(self) -> deque[Arrival]:
        """What arrived by now; what is not taken out and handled stays for `collect`."""
        arrived, inbox = self._arrived, self._inbox
        arrived.extend(map(inbox.get, (False,) * inbox.qsize()))
        return arrived
