"""The run loop: the one place that talks to everything.

A turn: what became ready begins (SCHEDULING), something is awaited (WAITING), what arrived is
finished (ANALYZING).  The parts answer with values; none of them knows the run.

What holds at any moment, also when the process dies (with a durability less than `saving.EACH` the
store may be behind):

- RUNNING (or REVERTING) and the attempt number are written before the task is submitted;
- a result is written before what depends on it is submitted;
- listeners hear of a change after it is written, in the order of the changes;
- only the thread of the loop changes scheduler state; outcomes, and whatever else other
  threads have to say, come through one queue, so that nothing is ever polled;
- an executor is told that it may forget an outcome (`retire`) after that outcome is written;
- who waits for a time (a retry, the deadline of the run) holds up nobody: the one wait of a turn
  ends when the first of them is due.
"""

from __future__ import annotations

import math
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import _clock, states
from wbengine import invocation as calls
from wbengine._crash import crashpoint
from wbengine.permits import tasks as limited_module
from wbengine.runtime import atoms, retry_decisions, saving
from wbengine.runtime import plan as plan_module
from wbengine.runtime import scheduler as scheduler_module
from wbengine.runtime import timers as timers_module
from wbengine.runtime import waits as waits_module
from wbengine.runtime.control import (
    DEADLINE,
    Arrival,
    CancelRequest,
    GivenUp,
    Inbox,
    InFlight,
    Parked,
    StopSignal,
    Withdrawn,
    is_cancellable,
)
from wbengine.runtime.held_calls import HeldCalls
from wbengine.runtime.maps import is_item
from wbengine.types import failure as ft

__all__ = ["MOST_PER_SHORT_TURN", "MOST_PER_TURN", "Run"]


@dataclass(slots=True)
class Stats:
    """Written by the run loop; reading is fine from any thread, at any time."""

    #: How many outcomes were handled.
    completed: int = 0
    #: How many calls were taken back before they started.
    withdrawn: int = 0
    #: How many failures arrived when the run was over already; the next run resolves them.
    discarded: int = 0
    #: How long the loop spent in each of its states, when that is measured.
    seconds_per_state: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


#: So many atoms at most are begun in one turn: what a very wide flow holds in memory at a time, and
#: how long listeners wait for the news of a turn, stays bounded.
MOST_PER_TURN: Final = 4096

#: The same where they run one after the other in this thread, and no
#: store is to be told of them before: what is made for a task is then used up while it is at hand.
MOST_PER_SHORT_TURN: Final = 256


class Run:
    """One run of one plan: `run_iter`, once."""

    def __init__(
        self,
        plan: plan_module.Plan,
        scheduler: scheduler_module.Scheduler,
        lifecycle: atoms.AtomLifecycle,
        saver: saving.Saver | None,
        executor: calls.TaskExecutor,
        inbox: Inbox,
        *,
        never_resolve: bool,
        defer_reverts: bool,
        clock: _clock.Clock = _clock.SYSTEM,
        waits: waits_module.Waits | None = None,
        limited: limited_module.LimitedTasks | None = None,
        park: Callable[[], object] | None = None,
        park_after: float = math.inf,
    ) -> None:
        self._plan = plan
        #: None: no task is limited.
        self._limited = limited
        # Suspends the flow where nothing of it runs, and nothing is due for so many seconds.
        self._park = park
        self._park_after = park_after
        #: Until when it was suspended, for that.
        self.parked: Parked | None = None
        #: What was begun and has to wait.
        self.held = HeldCalls(
            inbox, clock, lifecycle.record, waits, keeps_times=executor.keeps_times
        )
        self._scheduler = scheduler
        self._lifecycle = lifecycle
        self._maps = lifecycle.maps
        self._executor = executor
        self._inbox = inbox
        self._clock = clock
        self._never_resolve = never_resolve
        self._in_flight = InFlight(executor)
        self._sent = self._in_flight.sent
        #: How to stop it, for any thread.
        self.stop_signal = StopSignal(executor, inbox, self._in_flight)
        # A failure was kept as it is, or a revert failed: what is left must not go on.
        self._broken = False
        # What this turn began, until it is handed to the executor: the calls, and all their nodes.
        self._begun: list[atoms.Call] = []
        self._beginning: list[int] = []
        # What of a turn was not handed to an executor yet.
        self._unsent: deque[atoms.Call] = deque()
        self.stats = Stats()
        #: Why what was unfinished was given up, if it was.
        self.end_reason: GivenUp | None = None
        self._retries = lifecycle.retries
        self._saver = saver
        # A flow that is not kept is nobody else's.
        self._check = None if saver is None else saver.check
        self._flush_interval = saving.FLUSH_INTERVAL if saver is None else saver.flush_interval
        self._by_turns = saver is not None and saver.by_turns
        self._defer_reverts = defer_reverts
        self._immediate = executor.immediate
        # What is written is written for a turn at a time.
        short = executor.immediate and saver is None
        self._most = MOST_PER_SHORT_TURN if short else MOST_PER_TURN
        self._retires = type(executor).retire is not calls.TaskExecutor.retire
        self._timeout: float | None = None
        self._arrived: deque[Arrival] = deque()
        self._finished: list[calls.Invocation] = []
        # When what happened was last written and told.
        self._saved = 0.0
        #: Errors of the run itself (of retries that answer nonsense), besides those of atoms.
        self.errors = self._retries.errors
        #: The latest state entered; after the run, how it ended.
        self.state: str = states.UNDEFINED

    def run_iter(
        self, timeout: float | None = None, deadline: float | None = None, *, measure: bool = True
    ) -> Iterator[str]:
        """Go on from where the records say; yield each state entered, an end state last.

        `timeout` bounds each single wait (then ANALYZING finds nothing and waiting goes on); it
        is no limit for the run.  `deadline` is one: a moment on the machine's clock at which what
        is unfinished is given up.  With `measure`, `stats` tell how long each state took.
        """
        self.stop_signal.begin()
        self._timeout = None if timeout is None else min(timeout, timers_module.LONGEST)
        if deadline is not None:
            self.held.timers = timers_module.Timers(deadline)
        # Not kept: it would refer back to this object, and a cycle outlives the engine for long.
        reactions: dict[str, Callable[[], str]] = {
            states.RESUMING: self._resume,
            states.SCHEDULING: self._schedule,
            states.WAITING: self._wait,
            states.ANALYZING: self._analyze,
        }
        spent, monotonic = self.stats.seconds_per_state, self._clock.monotonic
        state, before = states.RESUMING, monotonic()
        while state in reactions:
            self.state = state
            yield state
            following = reactions[state]()
            if measure:
                now = monotonic()
                spent[state] += now - before
                before = now
            state = following
        self.state = state
        yield state

    def abandon(self) -> None:
        """After an error in the loop: start nothing more, take back what has not started.

        Afterwards the executor is to be stopped, and `collect` called.
        """
        self.stop_signal.end()
        sent = [*self._unsent, *self._withdraw()]
        for node in [*self._beginning, *(call.node for call in sent)]:
            self._lifecycle.give_back(node)

    def collect(self) -> None:
        """Save the outcomes that arrived after `abandon`; failures are resolved by the next run."""
        arrived, lifecycle, maps = self._arrivals(), self._lifecycle, self._maps
        for item in [arrived.popleft() for _ in range(len(arrived))]:
            if isinstance(item, Withdrawn):
                for call in item:
                    lifecycle.give_back(call.node)
            elif item is not None:
                call, outcome = item
                if calls.interrupted(outcome):
                    continue  # the next run begins it again
                if is_item(call):
                    ended = maps.finish(call, outcome)
                    if ended is None:
                        continue
                    call, outcome = ended
                self.stats.discarded += lifecycle.finish(call, outcome) == states.FAILURE
                self.stats.completed += 1
        for node in list(maps.running):
            if not maps.drop(node):
                lifecycle.give_back(node)
        self._save(saving.OVER)

    # -- the reactions: each returns the next state -----------------------------------------------

    def _resume(self) -> str:
        self._scheduler.start()
        earlier = self._lifecycle.given_up_before
        if earlier is not None:
            # What was under way then is not to run again, only to be undone.
            self._maps.stop(earlier)
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
        self._save(saving.START)
        self._submit()
        if self._lifecycle.failed_before_submit:
            for ended in self._lifecycle.take_failed_before_submit():
                self._inbox.put(ended)
        if self._by_turns and not (self._immediate and self._inbox.qsize()):
            self._save(saving.TURN)
        return states.WAITING

    def _wait(self) -> str:
        timeout, timers = self._timeout, self.held.timers
        asleep = timers is not None and not (self.stop_signal.suspending or self._scheduler.done)
        limited = self._limited
        if limited is not None and limited.closed:
            asleep = asleep or not self._scheduler.done
        if self._park is not None and not self._inbox.qsize() and self._may_park():
            park, self._park = self._park, None
            park()
        elif not self._inbox.qsize() and (self._scheduler.in_flight or asleep):
            if timers is not None:
                timeout = timers.wait(self._clock.monotonic(), timeout)
            try:
                # One step: an interruption must not come between taking it out and keeping it.
                self._arrived.extend(map(self._inbox.get, (True,), (timeout,)))
            except queue.Empty:
                pass
        return states.ANALYZING

    def _analyze(self) -> str:
        if self._check is not None:
            self._check()
        timers, suspending = self.held.timers, self.stop_signal.suspending
        due = timers is not None and timers.passed(self._clock.monotonic())
        if due and not suspending:
            self._expire()  # first: what arrives now came too late
        granted = bool(self.stop_signal.requests) and self._grant_requests()
        if self.held.waits is not None and self.held.waits.news:
            self.held.end_waits(self.held.waits)
        permitted = self._limited is not None and self._limited.news
        woken = self._take_in() or due or granted or permitted
        if suspending:
            self.held.timers = None
            self._stop_starting()
        if self._maps.running:
            self._release_idle_maps()
        if self._by_turns and self._immediate:
            self._save(saving.TURN)
        if self._scheduler.done:
            return self._end()
        return states.SCHEDULING if woken or self.stop_signal.suspending else states.WAITING

    def _end(self) -> str:
        """How the run ends."""
        self.stop_signal.decide()
        if self.stop_signal.requests:
            self._grant_requests()  # somebody suspended, and then cancelled
        self._save(saving.OVER)
        if self._broken:
            return states.FAILURE
        return self._scheduler.verdict()

    # -- turns ----------------------------------------------------------------------------------

    def _begin_all(self) -> None:
        scheduler, lifecycle, limited = self._scheduler, self._lifecycle, self._limited
        # The flow itself waits for a permit; but what was done is undone in any case.
        is_closed = limited is not None and limited.closed and not scheduler.reverting
        if limited is not None and is_closed and not limited.enter():
            return
        held = self.held
        while not (self.stop_signal.stopping or (held.timers is not None and self._overdue())):
            lifecycle.now = self._clock.time()
            woken = self._wake() if held.timers is not None else ()
            turn = scheduler.take(max(0, self._most - len(self._begun)))
            if self._limited is not None:
                turn.execute = self._permitted(turn.execute, self._limited)
            if turn.retry:
                again = [node for node in turn.retry if self._begin_again(node, node in woken)]
                for node in again:
                    lifecycle.reset(scheduler.reset_scope(node))
                    self._in_flight.ending.difference_update(self._plan.scope(node))
                self._begin(again, calls.EXECUTE)
            self._begin(turn.execute, calls.EXECUTE)
            if turn.revert:
                self._begin(turn.revert, calls.REVERT)
            ran = bool(self._plan.retried) and self._run_own_retries()
            if not (turn.votes or ran):
                return
            for node in turn.votes:
                self._vote(node)

    def _run_own_retries(self) -> bool:
        """Execute the retries that were made for single tasks and have just begun; returns whether
        there were any.

        So the tasks go out with this turn, each in the place that its priority gives it.
        """
        own: list[atoms.RetryCall] = []
        others: list[atoms.Call] = []
        made = self._plan.retried
        for call in self._begun:
            if isinstance(call, atoms.RetryCall) and call.node - 1 in made:
                (own if call.action == calls.EXECUTE else others).append(call)
            else:
                others.append(call)
        self._begun = others
        for call in own:
            self._handle_outcome(call, self._retries.run(call))
        return bool(own)

    def _begin(self, nodes: Sequence[int], action: calls.Action) -> None:
        self._beginning += nodes
        begin, begun = self._lifecycle.begin, self._begun
        for node in nodes:
            call = begin(node, action)
            if call is not None:
                begun.append(call)

    def _begin_call(self, call: calls.Invocation) -> None:
        """Hand out with this turn, or the next, what was held back, or taken back."""
        self._begun.append(call)
        self._beginning.append(call.node)

    def _vote(self, node: int) -> None:
        ballot = self._scheduler.ballot(node)
        try:
            refusals = self._lifecycle.vote(ballot)
        except Exception as error:
            self._lifecycle.fail_before_start(node, error)
            self._scheduler.approve(node)
        else:
            self._lifecycle.ignore(self._scheduler.decide(node, refusals))

    def _submit(self) -> None:
        begun = self._begun
        tasks = [call for call in begun if isinstance(call, calls.Invocation)]
        retries: list[atoms.RetryCall] = []
        if len(tasks) != len(begun):
            retries = [call for call in begun if isinstance(call, atoms.RetryCall)]
        if self._maps.running and not self._scheduler.halted:
            is_full = None if self._limited is None else self._limited.is_full
            events = self._lifecycle.item_events
            tasks += self._maps.refill(self._most, events, self._clock.time(), is_full)
        if self._maps.running or self._plan.retried:
            tasks.sort(key=lambda call: (-call.priority, call.node))
        late: list[calls.Invocation] = []
        if self._in_flight.granted:
            tasks, late = self._refuse(tasks)
        timed = [c for c in tasks if c.task.eta is not None or c.task.expires is not None]
        if timed or self.held.waits is not None:
            tasks = self.held.hold_back(tasks)
        if self._limited is not None:
            tasks = self._without_limited(tasks, self._limited)
        self._unsent = deque([*tasks, *retries])
        self._begun, self._beginning = [], []
        if tasks:
            if self._scheduler.reverting:
                self._end_late(tasks, late)
            crashpoint("engine.before-submit")
            self._executor.submit_many(self._while_wanted(len(tasks)), self._done)
            crashpoint("engine.after-submit")
            if late:
                self._in_flight.cancel(late)
        for call in self._while_wanted(len(retries)) if retries else ():
            self._inbox.put((call, self._retries.run(call)))
        if self._unsent:
            unsent, self._unsent = self._unsent, deque()
            self._inbox.put(Withdrawn(unsent))

    def _while_wanted(self, count: int) -> Iterator[Any]:
        """Stop in the middle of a turn when somebody suspends or cancels, or time is up: nobody
        else could.
        """
        unsent, stop_signal, held = self._unsent, self.stop_signal, self.held
        mapping, sent = self._maps.running, self._sent
        tasks = bool(unsent) and isinstance(unsent[0], calls.Invocation)
        immediate, check, cancellable = self._immediate, self._check, self._in_flight.cancellable
        for _ in range(count):
            if check is not None:
                check()
            call: Any = unsent[0]
            if tasks and immediate:
                sent.add(call)  # before the look: who cancels now sees it
            if stop_signal.stopping or (held.timers is not None and self._overdue()):
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
                    sent.add(call)  # not before: nobody can be told of what is not there
                    if call.task.cancel_on_revert and call.action == calls.EXECUTE:
                        cancellable.add(call)

    def _catch_up(self) -> None:
        """Finish what ended in the middle of a turn, when that takes its time: nobody who watches,
        and no crash, should have to wait for the end of a turn whose tasks all run in this thread.
        """
        if self._clock.monotonic() - self._saved < self._flush_interval:
            return
        # Who cancelled, or gave no more time, did so before it ended.
        late = self.stop_signal.requests or (self.held.timers is not None and self._overdue())
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
                self._handle_outcome(*item)
        return woken

    def _done(self, invocation: calls.Invocation, outcome: calls.Outcome) -> None:
        if invocation.index >= 0 and outcome.failed:
            self._maps.item_failed(invocation)
        self._inbox.put((invocation, outcome))

    def _handle_outcome(self, call: atoms.Call, outcome: calls.Outcome) -> None:
        if isinstance(outcome.value, ft.Failure):  # without a call for each task that succeeds
            calls.raise_interruption(outcome)
        if isinstance(call, calls.Invocation):
            self._sent.discard(call)
            self._in_flight.cancellable.discard(call)
            if self._limited is not None:
                self._limited.ended(call.node, call.index)
            if call.cancellation.cancelled and self._immediate and outcome.started is None:
                self._give_back(call)  # it was told before it began
                return
        if self._maps.running and is_item(call):
            self._handle_item(call, outcome)
            return
        state = self._lifecycle.finish(call, outcome)
        self.stats.completed += 1
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

    def _handle_item(self, call: calls.Invocation, outcome: calls.Outcome) -> None:
        if self._retires:
            self._finished.append(call)
        ended = self._maps.finish(call, outcome)
        if ended is not None:
            self._handle_outcome(*ended)
        elif not self._scheduler.halted and self._maps.to_withdraw(call.node):
            self._in_flight.cancel(self._in_flight.cancellable_of(call.node))
            self._give_back_limited(range(call.node, call.node + 1))
            for other in self._withdraw():
                if other.node == call.node:
                    self._give_back(other)
                else:
                    self._begin_call(other)

    def _release_idle_maps(self) -> None:
        """Let go of the Maps that cannot go on: nothing of them is under way any more."""
        while idle := self._maps.idle():
            for call, outcome, begun in idle:
                if outcome is not None:
                    self._handle_outcome(call, outcome)
                elif begun:
                    self._scheduler.give_back(call.node, begun)
                else:
                    self._give_back(call)

    def _fail(self, node: int, failure: ft.Failure) -> None:
        self._scheduler.failed(node)
        if self._never_resolve:
            self._stop()
        elif not self._in_flight.expected(node, failure):
            # Also when its scope is being undone already: its retry has to know of every failure,
            # and may think differently of this one (which can only widen what is undone).
            self._resolve(node, failure)

    def _resolve(self, node: int, failure: ft.Failure) -> None:
        resolution = self._retries.resolve(node, failure, self._defer_reverts)
        self._lifecycle.intend(self._scheduler.apply(resolution))
        self._end_early(resolution.scope)

    # -- time -----------------------------------------------------------------------------------

    def _wake(self) -> Collection[int]:
        """Hand out with the next turn the retries, and what was held back, whose time has come."""
        woken = set()
        for due in self.held.due():
            if isinstance(due, int):
                self._scheduler.wake(due)
                woken.add(due)
            else:
                self._begin_call(due)
        return woken

    # -- limits ---------------------------------------------------------------------------------

    def _permitted(
        self, nodes: Sequence[int], limited: limited_module.LimitedTasks
    ) -> Sequence[int]:
        """What of these may begin, and what waited for its permit and has it."""
        found, items = limited.take()
        for call in items:
            self._begin_call(call)
        for node in nodes:
            item: Any = self._plan.items[node]
            if node not in limited.limits or item.fans_out:
                found.append(node)
                continue
            # What an earlier run began is under way, or has to be found; and what is cancelled is
            # not handed out.
            begun = self._lifecycle.record(node).state == states.RUNNING
            refused = any(
                request.nodes is None or node in request.nodes
                for request in self._in_flight.granted
            )
            try:
                if refused or limited.begin(node, item.priority, anyway=begun):
                    found.append(node)
            except Exception as error:
                self._lifecycle.fail_before_start(node, error)
                found.append(node)
        limited.ask()
        return found

    def _without_limited(
        self, tasks: list[calls.Invocation], limited: limited_module.LimitedTasks
    ) -> list[calls.Invocation]:
        """Hold back the items of Maps that wait for permits, and return the other calls."""
        found = []
        for call in tasks:
            try:
                if (
                    not is_item(call)
                    or call.action != calls.EXECUTE
                    or limited.begin(call.node, call.priority, call, anyway=call.recovered)
                ):
                    found.append(call)
            except Exception as error:
                self._inbox.put((call, calls.Outcome(ft.Failure.from_exception(error))))
        limited.ask()
        return found

    def _give_back_limited(self, scope: range) -> None:
        """What waits for permits in a scope is not to begin now."""
        for node, call in () if self._limited is None else self._limited.withdraw(scope):
            if call is None:
                self._scheduler.give_back(node)
            else:
                self._give_back(call)

    def _may_park(self) -> bool:
        """Whether nothing runs, and nothing is due for long; then `parked` says until when."""
        if self.stop_signal.stopping or self._maps.running or self._scheduler.done:
            return False
        if self._limited is not None and self._limited.keeps_place:
            return False
        if self._scheduler.in_flight > len(self.held):
            return False
        self.parked = self.held.parked(self._park_after)
        return self.parked is not None

    def _begin_again(self, node: int, over: bool) -> bool:
        """A retry was handed out to run its flow again: False when it has to wait first."""
        seconds = self._lifecycle.begin_again(node, self._clock.time(), over)
        if not seconds:
            return True
        self._scheduler.postpone(node)
        self.held.set_timer(node, self._clock.monotonic() + seconds)
        return False

    def _save(self, moment: int) -> None:
        """Write if it is time to, and then let go of what ended; tell what happened."""
        self._lifecycle.take_incidents()
        written = self._saver is None or self._saver.save(moment)
        if written and self._finished:
            finished, self._finished = self._finished, []
            crashpoint("engine.before-retire")
            self._executor.retire(finished)
            crashpoint("engine.after-retire")
        if self._lifecycle.events:
            # Who hears of it may suspend, or cancel: then what began is given back.
            self._lifecycle.deliver(self._stopping if moment == saving.START else None)
        if self._immediate:
            self._saved = self._clock.monotonic()

    def _stopping(self) -> bool:
        return self.stop_signal.stopping

    def _arrivals(self) -> deque[Arrival]:
        """What arrived by now; what is not taken out and handled stays for `collect`."""
        arrived, inbox = self._arrived, self._inbox
        arrived.extend(map(inbox.get, (False,) * inbox.qsize()))
        return arrived

    # -- stopping ------------------------------------------------------------------------------

    def _overdue(self) -> bool:
        timers = self.held.timers
        return timers is not None and self._clock.monotonic() >= timers.deadline

    def _expire(self) -> None:
        """If time is up, give up what is unfinished."""
        if self.held.timers is None or not self._overdue():
            return
        self.held.timers.deadline = math.inf
        if not (self._broken or self._scheduler.done):
            self._give_up(DEADLINE)

    def _grant_requests(self) -> bool:
        """End what requests to cancel name; returns whether there were any.

        A request comes too late for what has ended.
        """
        requests = self.stop_signal.requests
        found = bool(requests)
        while requests:
            request = requests[0]  # nothing starts before it is out
            if self._may_grant(request):
                if not self._broken:
                    # A revert that failed in an earlier run may succeed by now.
                    self._scheduler.try_reverts_again()
                    self._give_up(GivenUp(True, request.reason))
                self._in_flight.granted.append(request)
                self._give_back_limited(range(len(self._plan)))
                for call in self._withdraw():
                    self._give_back(call)
                self._in_flight.cancel(self._in_flight.targets(request))
            self.stop_signal.granted()
        return found

    def _may_grant(self, request: CancelRequest) -> bool:
        scheduler = self._scheduler
        # What was left done can still be undone, as long as the run is not over.
        if (
            scheduler.done
            and not scheduler.halted
            and (self.stop_signal.decided or scheduler.verdict() != states.FAILURE)
        ):
            return False
        return request.nodes is None or not all(map(scheduler.ended, request.nodes))

    def _give_up(self, why: GivenUp) -> None:
        if self._never_resolve:
            self.end_reason = why
            self._stop()
            return
        changes = self._scheduler.apply(retry_decisions.everything(self._plan))
        # No changes: everything is being reverted anyway, for a reason of its own.
        if changes:
            self.end_reason = why
            self._lifecycle.give_up(changes, why, self._clock.time())
            self._maps.stop(why)
            for call in self._withdraw():
                self._give_back(call)
            self._end_early(range(len(self._plan)))

    def _end_early(self, scope: range) -> None:
        """A scope is being undone: cancel what of it is under way, as far as that says so itself
        (`Task.cancel_on_revert`).
        """
        self._give_back_limited(scope)
        if self._maps.running:
            limited = () if self._limited is None else self._limited.limits
            self._in_flight.ending.update(self._maps.undo(scope, limited))
        found = [call for call in self._in_flight.cancellable if call.node in scope]
        if self._unsent and self._executor.immediate:  # in the midst of a turn
            found += [call for call in self._unsent if is_cancellable(call) and call.node in scope]
        for call in self.held.take(lambda call: is_cancellable(call) and call.node in scope):
            found.append(call)
            self._inbox.put((call, self._in_flight.refusal(call, CancelRequest(None))))
        if found:
            self._in_flight.undo(found)

    def _end_late(self, tasks: Collection[calls.Invocation], late: list[calls.Invocation]) -> None:
        """What an earlier run had begun is about to be handed out, and what it is part of is being
        undone: add to `late` what of it is to be cancelled then.

        Where tasks run in this very thread, those have to be told before.
        """
        undoes = self._scheduler.undoes
        found = [call for call in tasks if is_cancellable(call) and undoes(call.node)]
        if self._executor.immediate:
            early = [call for call in {*found, *late} if call.recovered]
            self._in_flight.ending.update(call.node for call in found)
            self._in_flight.cancel(early)
            late.clear()
        else:
            self._in_flight.ending.update(call.node for call in found)
            late += found

    def _refuse(
        self, tasks: list[calls.Invocation]
    ) -> tuple[list[calls.Invocation], list[calls.Invocation]]:
        """Let no execution start that somebody cancelled; what an earlier run may have under way
        has to be found, and then is to end.

        Returns what is to be handed out, and what of it is to be cancelled then.
        """
        wanted, late = [], []
        for call in tasks:
            request = self._in_flight.unwanted(call)
            if request is None or call.recovered:
                wanted.append(call)
                late += [] if request is None else [call]
            else:
                self._inbox.put((call, self._in_flight.refusal(call, request)))
        return wanted, late

    def _stop(self) -> None:
        self._broken = True
        self._stop_starting()

    def _stop_starting(self) -> None:
        if not self._scheduler.halted:
            self._scheduler.halt()
            self._maps.halt()
        self._give_back_limited(range(len(self._plan)))
        begun, self._begun, self._beginning = self._begun, [], []
        for call in [*begun, *self._withdraw()]:
            self._give_back(call)

    def _withdraw(self) -> list[calls.Invocation]:
        """Take back all that has not started."""
        return [*self.held.take(), *self._executor.withdraw()]

    def _give_back(self, call: atoms.Call) -> None:
        if isinstance(call, calls.Invocation):
            self._sent.discard(call)
            self._in_flight.cancellable.discard(call)
            if self._limited is not None:
                self._limited.ended(call.node, call.index)
        if is_item(call):
            self._maps.give_back(call)
            return
        kept = self._lifecycle.give_back(call.node)
        self._scheduler.give_back(call.node, kept)
        self.stats.withdrawn += 1
