"""Every request of an executor, from submission to its one outcome, without any I/O.

`RequestTracker` takes invocations, answers, news of workers and the time; it returns *effects*:
what its owner, who has sockets and clocks, does next, in that order.  It owns no thread, no lock
and no clock, so that any history can be replayed against it.

The life of a request: it is WAITING while no known worker offers its task; it is PENDING from the
moment it is routed to a queue (its ledger row is opened, then its message is published) until a
worker says otherwise; then RUNNING; and it ends in exactly one outcome, whichever terminal answer
of the current epoch comes first.  Anything else that comes is counted in `ignored` and dropped.
What becomes of requests whose worker or engine went away is decided in `recovery`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, Protocol

from wbengine import _names, invocation, start_times
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based.discovery.roster import nameless
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import tracked as tracking
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.engines.worker_based.requests.recovery import STANDSTILL, Recovery
from wbengine.engines.worker_based.requests.tracked import (
    CANCELLED,
    DUE,
    EXPIRED,
    EXPIRY,
    LOOKUP,
    REPUBLISH,
    STRAY,
    TIMEOUT,
    UNSENT,
    WARN,
    WITHDRAWN,
    TrackedRequest,
)
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: At most this many requests of one queue are in the broker, or `PER_SLOT` for each known slot if
#: that is more; the rest wait here, by priority, where they can still change queues.
MOST_IN_BROKER: Final = 1000
PER_SLOT: Final = 8

#: After so many seconds in WAITING, the log says once what a request waits for.
WARN_AFTER: Final = 5.0

#: Seconds until a waiting request, a message of which is out, is looked for; then twice as many.
STRAY_AFTER: Final = 10.0

#: So many requests that ended are remembered, for people.
REMEMBERED: Final = 1000

#: How many known topics and tasks an error names.
_NAMED: Final = 8


class Observer(Protocol):
    """Is told of the requests of an executor, whichever engine uses it, from any thread: it must
    neither wait nor raise.
    """

    def publishing(self, tracked: TrackedRequest, envelope: env.Envelope) -> None:
        """Its message is about to be published; headers may be added to it.  Again, where that has
        to be tried again.
        """

    def published(self, tracked: TrackedRequest, error: BaseException | None) -> None:
        """It was, as far as the broker says so; or never will be, because of `error`."""

    def settled(self, tracked: TrackedRequest, outcome: invocation.Outcome, waited: float) -> None:
        """It ended, `waited` seconds after it was submitted.  Under the lock of the executor."""


class RequestTracker:
    """All requests of one executor.  Not thread-safe: its owner holds a lock around every call.

    `wall` tells unix seconds; only `expires` and `eta` that are datetimes, and peers without a
    ledger, need it.
    """

    def __init__(
        self,
        reply_to: str,
        offers: ProxyWorkerFinder,
        *,
        transition_timeout: float | None = pr.REQUEST_TIMEOUT,
        ledger: str | None = None,
        options: RequestOptions = RequestOptions(),  # noqa: B008  (frozen)
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.reply_to = reply_to
        self.offers = offers
        self.timeout = transition_timeout
        #: The digest of the ledger in which requests have their rows; None: there is none.
        self.ledger = ledger
        #: Whether the ledger is in a place of its own: then outcomes are read there, and answers
        #: only tell that there is one, for whoever may publish them cannot write there.
        self.separate_ledger = False
        #: Whether the workers are TaskFlow's: answers have no numbers, so nothing is sent again.
        self.plain = False
        self.options = options
        self.wall = wall
        self.closed: str | None = None
        self.requests: dict[str, TrackedRequest] = {}
        self._flows: dict[str, dict[str, TrackedRequest]] = {}
        self._order = itertools.count(1)
        # Each request is in one of these at most.
        self.waiting = tracking.RequestIndex()  # by task class
        self.deferred = tracking.RequestIndex()  # until their time comes
        self.backlog = tracking.Backlog()  # by queue
        self.in_flight = tracking.InFlight()  # by queue
        self.held = tracking.RequestIndex()  # by worker
        # Of earlier runs, until it is known where they are.
        self.inherited = tracking.RequestIndex()
        self.timers = tracking.TimerHeap()
        #: What becomes of requests that nothing is heard of, and of those of earlier runs.
        self.recovery = Recovery(self)
        self.observers: tuple[Observer, ...] = ()
        #: What came and was dropped, by reason: unknown, late, duplicate, reordered, old_epoch,
        #: unexpected, unreadable, misaddressed.
        self.ignored: Counter[str] = Counter()
        #: The last that ended, `described`.
        self.ended: deque[tuple[Any, ...]] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        """How many requests there are."""
        return len(self.requests)

    # Submitting and routing.

    def submit(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Take a request on; what cannot be encoded is settled as a failure at once.

        :raises Duplicate: the same action of the same attempt of the atom is already tracked.
        """
        tracked = self.admit(call, done, now)
        if self.closed is not None:
            return self.leave_undone(tracked, self.closed)
        if self.recovery.early and tracked.id in self.recovery.early:
            # The store did not know that it was sent.
            effects = self.recovery.hear_early(tracked, now)
            return effects + self.route(tracked, now) if tracked.live else effects
        task = call.task
        if task.eta is not None or task.expires is not None:
            return self.keep_times(tracked, now) or self.route(tracked, now)
        return self.route(tracked, now)

    def admit(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> TrackedRequest:
        tracked = TrackedRequest(call, done, self.timeout, now)
        if tracked.id in self.requests:
            raise exc.Duplicate(f"request {tracked.request!r} is already tracked")
        call.ticket = tracked
        self.requests[tracked.id] = tracked
        flow = self._flows.get(tracked.flow)
        if flow is None:
            self._flows[tracked.flow] = {tracked.id: tracked}
        else:
            flow[tracked.id] = tracked
        return tracked

    def route(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.pending_outcome is not None or (
            tracked.expires_at is not None and now >= tracked.expires_at
        ):
            if tracked.dispatched:
                self.wait(tracked, now)
            return self._expire(tracked, now)
        if tracked.eta is not None and now < tracked.eta:
            self.deferred.put("", tracked)
            self.timers.set(tracked.eta, DUE, tracked)
            return []
        queue = self.offers.queue_for(tracked.task_cls, self.load)
        if queue is None:
            self.wait(tracked, now)
            return []
        if (
            self.ledger is None
            and tracked.queue is not None
            and tracked.unused_epoch > tracked.epoch
        ):
            return self.recovery.route_again(tracked, queue, now)
        tracked.request.transition(pr.PENDING)
        tracked.queue = queue
        tracked.place = (-tracked.invocation.priority, next(self._order))
        if self.in_flight.count(queue) >= self._capacity(queue):
            self.backlog.put(queue, tracked)
            return []
        return self.dispatch(tracked, now)

    def load(self, queue: str) -> int:
        return self.in_flight.count(queue) + self.backlog.count(queue)

    def _capacity(self, queue: str) -> int:
        served = PER_SLOT * self.offers.slots(queue)
        return served if served > MOST_IN_BROKER else MOST_IN_BROKER

    def wait(self, tracked: TrackedRequest, now: float) -> None:
        if self.ledger is not None or tracked.unused_epoch <= tracked.epoch:
            tracked.queue = None  # else its message may wait there, and need not be sent again
        if tracked.dispatched and self.ledger is not None:
            self.timers.set(now + STRAY_AFTER, STRAY, tracked)
        self.waiting.put(tracked.task_cls, tracked)
        self.start_clock(tracked, now)
        if self.timeout is None or self.timeout > WARN_AFTER:
            self.timers.set(now + WARN_AFTER, WARN, tracked)

    def start_clock(self, tracked: TrackedRequest, now: float) -> None:
        tracked.request.since = now
        if self.timeout is not None:
            self.timers.set(now + self.timeout, TIMEOUT, tracked)

    def dispatch(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        assert tracked.queue is not None
        try:
            envelope = tracked.envelope(
                self.reply_to,
                self.options,
                ours=self.offers.speaks(tracked.queue),
                ledger=self.ledger,
            )
        except Exception as error:  # whatever arguments do, only their task is hurt
            return self.settle(tracked, ft.Failure.from_exception(error), now=now)
        if tracked.expires_at is not None and self.ledger is None:
            envelope.headers[env.EXPIRES] = self.wall() + tracked.expires_at - now
        tracked.sent_at = None  # of the message that goes out now
        again = tracked.index is self.in_flight
        tracked.dispatched, tracked.unused_epoch = True, tracked.epoch + 1
        self.in_flight.put(tracked.queue, tracked)
        if not again:  # else it is the same wait
            self.start_clock(tracked, now)
        return [fx.Dispatch(tracked, tracked.epoch, envelope)]

    def refill(self, queue: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self.closed is None and (tracked := self.backlog.first(queue)) is not None:
            if self.in_flight.count(queue) >= self._capacity(queue):
                break
            effects += self.dispatch(tracked, now)
        return effects

    def on_gained(self, names: Iterable[str], now: float) -> list[Effect]:
        """Task classes that a worker began to offer: what waited for them is routed."""
        effects: list[Effect] = []
        for name in names:
            for tracked in self.waiting.get(name):
                tracked.leave()
                effects += self.route(tracked, now)
        return effects

    def keep_times(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """When it may start; an end, if its task says so in a way that makes no sense."""
        try:
            self.read_times(tracked, now)
        except (TypeError, ValueError) as error:
            return self.settle(tracked, ft.Failure.from_exception(error), now=now)
        if tracked.expires_at is not None:
            self.timers.set(tracked.expires_at, EXPIRY, tracked)
        return []

    def read_times(self, tracked: TrackedRequest, now: float) -> None:
        task = tracked.invocation.task
        if tracked.invocation.action != invocation.EXECUTE:
            return  # what was done is undone in any case
        if task.eta is not None:
            what = f"eta of task {task.name!r}"
            tracked.eta = start_times.moment(task.eta, what, now, self.wall())
        if task.expires is not None:
            what = f"expires of task {task.name!r}"
            tracked.expires_at = start_times.moment(task.expires, what, now, self.wall())

    # Answers.

    def on_response(
        self, answer: env.Envelope, receipt: Any, now: float, *, stored: bool = False
    ) -> list[Effect]:
        """A validated RESPONSE; `stored`: it is that of a row.  Idempotent: repeats, late and
        foreign ones change nothing.

        The receipt of a terminal answer is acknowledged only once its outcome was `retired`.  What
        was sent to other names than this tracker's is no answer: all may publish to all engines.
        """
        if answer.routing_key not in ("", self.reply_to):  # none: it comes from the ledger
            self.ignored["misaddressed"] += 1
            LOG.warning("an answer that was sent to %.80r is refused", answer.routing_key)
            return [fx.Acknowledge(receipt)]
        tracked = self.requests.get(answer.correlation_id or "")
        reason = tracked.refusal(answer) if tracked is not None else "unknown"
        if tracked is None or reason is not None:
            return self._on_unfit(tracked, reason or "unknown", answer, receipt, now)
        if env.WBE_LOST in answer.headers and answer.body["state"] == pr.FAILURE:
            effects = self.recovery.on_given_twice(tracked, answer, now)
            return [*effects, fx.Acknowledge(receipt)]
        ends = answer.body["state"] in pr.STOP_STATES
        if ends and self.separate_ledger and not stored:
            if answer.body["state"] == pr.FAILURE:
                tracked.refused = env.value_of(answer)
            return [fx.Inspect(tracked), fx.Acknowledge(receipt)]
        # Who was asked says that it has it, and since when that runs, if it does.
        waits = env.WBE_ASK in answer.headers and env.WBE_STARTED not in answer.headers
        worker = answer.text(env.WBE_WORKER)
        effects = self.started(tracked, worker, now, ends, waits=waits)
        if tracked.lookups and (self.ledger is None or env.WBE_ASK in answer.headers):
            tracked.lookups = 0
        if ends:
            tracked.receipt = receipt
            return effects + self.settle(
                tracked,
                env.value_of(answer),
                started=answer.seconds(env.WBE_STARTED),
                ended=answer.seconds(env.WBE_ENDED),
                now=now,
            )
        if answer.body["state"] == pr.EVENT and tracked.invocation.events is not None:
            details = env.details_of(answer)
            if details is None:
                self.ignored["unreadable"] += 1
            else:
                effects.append(fx.Tell(tracked, answer.body["data"]["event_type"], details))
        effects.append(fx.Acknowledge(receipt))
        return effects

    def _on_unfit(
        self,
        tracked: TrackedRequest | None,
        reason: str,
        answer: env.Envelope,
        receipt: Any,
        now: float,
    ) -> list[Effect]:
        """An answer that settles nothing and starts nothing."""
        if tracked is not None and tracked.live and env.WBE_ASK in answer.headers:
            return [*self.recovery.on_told(tracked, answer, now), fx.Acknowledge(receipt)]
        if tracked is None and self.recovery.inherits and answer.body["state"] in pr.STOP_STATES:
            return self.recovery.keep_early(answer, receipt)
        self.ignored[reason] += 1
        LOG.debug(
            "%s to request %s (epoch %s, of worker %s) is dropped: %s",
            answer.body["state"], answer.correlation_id, answer.headers.get(env.WBE_EPOCH),
            answer.text(env.WBE_WORKER), reason,
        )  # fmt: skip
        return [fx.Acknowledge(receipt)]

    def started(
        self,
        tracked: TrackedRequest,
        worker: str | None,
        now: float,
        ends: bool = False,
        *,
        waits: bool = False,
    ) -> list[Effect]:
        """It is heard that a worker began it; `ends`: and that it is done; `waits`: only that it
        has it, and perhaps no slot for it.
        """
        request = tracked.request
        if request.current_state == pr.RUNNING:
            return self.began(tracked, worker) if tracked.claimed and not (waits or ends) else []
        if request.current_state == pr.WAITING:
            request.transition(pr.PENDING)
        request.transition(pr.RUNNING)
        tracked.ran = True
        queue = tracked.queue if tracked.index is self.in_flight else None
        if queue is not None:
            self.in_flight.serve(tracked, now)
        else:
            tracked.leave()
        if worker is not None and ends:  # it is not held any more
            tracked.worker = worker
            self.offers.watch(worker)
        elif worker is not None:
            self.hold(tracked, worker)
        elif self.plain and not ends and tracked.queue is not None:
            self.held.put(nameless(tracked.queue), tracked)
        effects = self.refill(queue, now) if queue is not None else []
        if worker is not None and not ends:
            tracked.claimed = waits
            effects += self._taken(tracked, worker) if waits else self.began(tracked, worker)
        if tracked.pending_outcome == CANCELLED and not ends:
            effects += self.cancels([tracked], worker or env.ALL_WORKERS)
        return effects

    def began(self, tracked: TrackedRequest, worker: str | None) -> list[Effect]:
        """A worker has begun what it has."""
        tracked.claimed = False
        if worker is not None and hasattr(tracked.invocation.events, "began"):
            return [fx.Began(tracked, worker)]
        return []

    def _taken(self, tracked: TrackedRequest, worker: str) -> list[Effect]:
        if hasattr(tracked.invocation.events, "taken"):
            return [fx.Taken(tracked, worker)]
        return []

    def hold(self, tracked: TrackedRequest, worker: str, silence: float = 0.0) -> None:
        tracked.worker = worker
        self.held.put(worker, tracked)
        self.offers.watch(worker, silence)

    def holds(self, worker: str) -> bool:
        """Whether a worker is known to run one of these requests."""
        return self.held.count(worker) > 0

    def settle(
        self,
        tracked: TrackedRequest,
        value: Any,
        *,
        now: float,
        started: float | None = None,
        ended: float | None = None,
    ) -> list[Effect]:
        ran = tracked.state == pr.RUNNING
        tracked.request.transition(pr.FAILURE if isinstance(value, ft.Failure) else pr.SUCCESS)
        queue = tracked.queue if tracked.index is self.in_flight else None
        tracked.leave()
        worker = (tracked.worker or tracked.queue) if ran else None
        outcome = invocation.Outcome(value, worker or invocation.LOCAL, started, ended)
        failure = value.exception_str if isinstance(value, ft.Failure) else None
        self.ended.append(tracked.described(started, ended, failure))
        for observer in self.observers:
            observer.settled(tracked, outcome, now - tracked.born)
        effects: list[Effect] = [fx.Settle(tracked, outcome)]
        return effects + self.refill(queue, now) if queue is not None else effects

    def retired(self, calls: Iterable[invocation.Invocation]) -> list[Effect]:
        """Outcomes were saved: forget the requests, drop their rows, acknowledge their answers."""
        effects: list[Effect] = []
        for call in calls:
            tracked = call.ticket
            if not isinstance(tracked, TrackedRequest) or tracked.live:
                continue
            if tracked.id not in self.requests:
                continue
            self._remove(tracked)
            call.ticket = None
            if tracked.dispatched:
                effects.append(fx.Drop(tracked.id))
            if tracked.receipt is not None:
                effects.append(fx.Acknowledge(tracked.receipt))
                tracked.receipt = None
        self.timers.tidy(len(self.requests))
        return effects

    def _remove(self, tracked: TrackedRequest) -> None:
        flow = tracked.flow
        del self.requests[tracked.id]
        row = self._flows[flow]
        del row[tracked.id]
        if not row:
            del self._flows[flow]

    # Time.

    def next_timer(self) -> float | None:
        """When `tick` should be called next, on the clock that is passed in as `now`."""
        return self.timers.next()

    def tick(self, now: float) -> list[Effect]:
        """Let what is due expire.  Costs O(log n) for each timer that is due, no more."""
        effects: list[Effect] = []
        told: set[str] = set()
        for kind, tracked in self.timers.due(now):
            if kind == WARN:
                if tracked.state == pr.WAITING and tracked.task_cls not in told:
                    told.add(tracked.task_cls)  # thousands like it would say the same
                    LOG.warning("%s", self._why_waiting(tracked, now))
            elif kind != TIMEOUT:
                effects += self._on_timer(kind, tracked, now)
            elif tracked.request.expired_at(now):
                effects += self._check_timeout(tracked, now)
        return effects + self.recovery.ask() if self.recovery.unasked else effects

    def _on_timer(self, kind: str, tracked: TrackedRequest, now: float) -> list[Effect]:
        if kind == LOOKUP:
            return self.recovery.look(tracked, now)
        if kind == EXPIRY:
            return self._expire(tracked, now)
        if kind == REPUBLISH:
            return self.recovery.republish(tracked, now)
        if kind == DUE:
            if tracked.index is not self.deferred:
                return []
            tracked.leave()
            return self.route(tracked, now)
        if tracked.index is not self.waiting or not tracked.dispatched:
            return []
        waited = now - tracked.request.since
        self.timers.set(now + max(STRAY_AFTER, min(60.0, waited)), STRAY, tracked)
        return [fx.Inspect(tracked)]

    def _check_timeout(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        request = tracked.request
        missed = self.offers.missed(request.since, now)
        if missed and request.timeout is not None:
            request.since += missed  # no worker could be heard of, even if it was there
            if not request.expired_at(now):
                self.timers.set(request.since + request.timeout, TIMEOUT, tracked)
                return []
        if tracked.index is self.inherited:
            return self.recovery.give_up(tracked, now)
        if tracked.sent_at is not None and tracked.sent_at - request.since > STANDSTILL:
            rest = tracked.sent_at + 2 * STANDSTILL - now
            if rest > 0:  # it was sent again, and is on its way
                self.timers.set(now + rest, TIMEOUT, tracked)
                return []
        if not tracked.dispatched and tracked.state == pr.WAITING:
            return self.time_out(tracked, now)
        if tracked.index is self.backlog or (
            tracked.index is self.in_flight and self._line_moves(tracked, now)
        ):
            self.start_clock(tracked, now)
            return []
        return [fx.Revoke(tracked)]

    def _line_moves(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether a request waits because others are served: a busy fleet stops its clock."""
        queue = tracked.queue
        if queue is None or not self.offers.slots(queue):
            return False
        if self.plain:  # whose slots are not known
            return self.held.count(nameless(queue)) > 0
        if not self.offers.free(queue):
            return True
        sent = tracked.sent_at or 0.0
        if now - sent < 2 * self.offers.period and not self.offers.rounds(queue, sent):
            return True  # those slots were free before it was sent; the next beat will tell
        # A slot may look free between two tasks; but then the line moves, and not past us.
        return self.in_flight.approaches(tracked)

    def on_unsent(self, tracked: TrackedRequest, error: BaseException, now: float) -> list[Effect]:
        """A `Dispatch` that can never be published, for a reason that is not the broker's."""
        if not tracked.live:
            return []
        return self.settle(tracked, ft.Failure.from_exception(error), now=now)

    def time_out(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.ran:
            return self.settle(tracked, tracked.loss(), now=now)
        # Without a ledger a message that is out may be run after all; and it is not known under
        # which numbers an earlier run of its flow had it run.
        certain = not tracked.dispatched or (
            self.ledger is not None and not tracked.invocation.recovered
        )
        kind = exc.NeverStarted if certain else exc.RequestTimeout
        error = kind(self._why_waiting(tracked, now))
        return self.settle(tracked, ft.Failure.from_exception(error), now=now)

    def _why_waiting(self, tracked: TrackedRequest, now: float) -> str:
        name, waited = tracked.invocation.task.name, now - tracked.request.since
        why = _why_nobody(self.offers, tracked.task_cls)
        if tracked.queue is not None and tracked.state == pr.PENDING:
            why = f"no worker started it, although those of {tracked.queue!r} offer it"
        return f"task {name!r} has waited {waited:.1f} s: {why}"

    # Ends that are no answers: cancelled, expired, given back, left behind.

    def cancel(self, calls: Iterable[invocation.Invocation], now: float) -> list[Effect]:
        """Let these come to an end soon (see `TaskExecutor.cancel`).  Idempotent."""
        effects: list[Effect] = []
        to: dict[str, list[TrackedRequest]] = {}
        for call in calls:
            tracked = call.ticket
            if not isinstance(tracked, TrackedRequest) or not tracked.live:
                continue
            known, tracked.pending_outcome = tracked.pending_outcome == CANCELLED, CANCELLED
            if tracked.state == pr.RUNNING:
                to.setdefault(tracked.worker or env.ALL_WORKERS, []).append(tracked)
            elif not known:
                effects += self._keep_from_starting(tracked, now)
                if tracked.live and self.ledger is None:
                    to.setdefault(env.ALL_WORKERS, []).append(tracked)
        for worker, found in to.items():
            effects += self.cancels(found, worker)
        return effects + self.recovery.ask()

    def _expire(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Its time is over; the question is whether it was started."""
        if tracked.pending_outcome is not None or tracked.state not in pr.WAITING_STATES:
            return []
        tracked.pending_outcome = EXPIRED
        return self._keep_from_starting(tracked, now)

    def _keep_from_starting(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if not tracked.dispatched:
            return self.end_unstarted(tracked, now)
        if tracked.index is self.inherited:
            return []  # it is being looked for
        if self.ledger is not None:
            return [fx.Revoke(tracked)]
        self.recovery.search(tracked, UNSENT, now)
        return []

    def end_unstarted(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """It does not run, and is not to."""
        end = tracked.loss() if tracked.ran else tracked.failure_before_start()
        return self.settle(tracked, end, now=now)

    def cancels(self, found: Iterable[TrackedRequest], to: str) -> list[Effect]:
        named = [(tracked.id, tracked.number) for tracked in found]
        return [fx.Cancel(order) for order in commands.cancellations(named, to)]

    def unfinished(self, flow: str | None = None) -> list[TrackedRequest]:
        """Requests (of one flow, by its uuid) that have no outcome yet."""
        return [tracked for tracked in self.all_of(flow) if tracked.live]

    def unstarted(self, flow: str | None = None) -> list[TrackedRequest]:
        """Requests (of one flow, by its uuid) that no worker is known to have started.

        Those that were `dispatched` may have a row, and must be revoked before they are forgotten;
        but not those that an earlier run left (`is_inherited`): they were not touched yet.
        """
        return [tracked for tracked in self.unfinished(flow) if tracked.state in pr.WAITING_STATES]

    def is_inherited(self, tracked: TrackedRequest) -> bool:
        """Whether a request is an earlier run's, of which nothing is known yet."""
        return tracked.index is self.inherited

    def all_of(self, flow: str | None) -> Iterator[TrackedRequest]:
        found = self.requests if flow is None else self._flows.get(flow, {})
        return iter(list(found.values()))

    def forget(self, tracked: TrackedRequest) -> None:
        """Let go of a request, without an outcome."""
        tracked.leave()
        tracked.queue = None
        tracked.epoch = WITHDRAWN
        tracked.invocation.ticket = None
        self._remove(tracked)
        self.timers.tidy(len(self.requests))

    def close(self, reason: str, kept: Collection[str] = ()) -> list[Effect]:
        """Settle everything that is left as failed, and from now on all that is submitted."""
        self.closed = reason
        return self.leave(reason, kept=kept)

    def leave(
        self, reason: str, flow: str | None = None, kept: Collection[str] = ()
    ) -> list[Effect]:
        """Settle everything (of one flow) that is left as failed, and forget it.

        Where the flow is `kept` this may not be saved: its next run finds the rows.
        """
        live = self.unfinished(flow)
        effects = [effect for tracked in live for effect in self.leave_undone(tracked, reason)]
        for tracked in live:
            if tracked.invocation.flow_uuid in kept:
                self.forget(tracked)
        return effects + self.retired(tracked.invocation for tracked in live)

    def leave_undone(self, tracked: TrackedRequest, reason: str) -> list[Effect]:
        error = exc.ExecutionFailure(
            f"task {tracked.invocation.task.name!r} was left {tracked.state}: {reason}"
        )
        return self.settle(tracked, ft.Failure.from_exception(error), now=tracked.request.since)

    def reopen(self) -> None:
        """Take requests again, after `close`."""
        self.closed = None
        self.recovery.early.clear()  # their connection is gone: they cannot be acknowledged


def _why_nobody(offers: ProxyWorkerFinder, task_cls: str) -> str:
    """Why a request for `task_cls` cannot go anywhere, for people."""
    tasks, topics = offers.tasks(), offers.topics()
    if not topics:
        wanted = ", ".join(map(repr, offers.wanted))
        where = f"on {wanted} (others do not count)" if wanted else "on any topic"
        return f"no worker is known, {where}; none offers {task_cls}"
    return (
        f"no worker offers {task_cls}{_names.hint(task_cls, tasks)};"
        f" known topics: {_some(topics)}; known tasks: {_some(tasks)}"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) or "none") + more
