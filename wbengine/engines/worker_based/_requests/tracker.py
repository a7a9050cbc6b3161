"""All requests of an executor, from submission to their outcome, without I/O.

`RequestTracker` receives invocations, replies, changes of workers and the time. It returns
*effects*, which its owner performs in the order of the list. It has no thread, lock or clock, so
that tests can replay any history.

A request is WAITING while no known worker offers its task. It is PENDING from the time at which it
is routed to a queue, and RUNNING when a worker has it. It has exactly one outcome: the first
terminal reply of the current epoch. All other replies (second, late, old, misaddressed, or for an
unknown request) are dropped and counted. `recovery` handles requests whose worker or engine was
lost.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

from wbengine import exceptions as exc
from wbengine import states
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._discovery.roster import TopicWorker, anonymous_key
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._messages.request_messages import Death, Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import recovery as rc
from wbengine.engines.worker_based._requests import request_state as tracking
from wbengine.engines.worker_based._requests.effects import Asks, Effect
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.recovery_with_ledger import LedgerRecovery
from wbengine.engines.worker_based._requests.recovery_without_ledger import (
    AskRecovery,
    TaskFlowRecovery,
)
from wbengine.engines.worker_based._requests.request_state import (
    CANCELLED,
    DUE,
    EXPIRED,
    EXPIRY,
    LOOKUP,
    REPUBLISH,
    STANDSTILL_SECONDS,
    STRAY,
    TIMEOUT,
    UNWANTED,
    WARN,
    WITHDRAWN,
    RequestTable,
    TrackedRequest,
)
from wbengine.running import LOCAL
from wbengine.transports._ledger import NO_FENCE, Fence
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: Maximum number of requests of one queue in the broker: the larger of a constant and a number for
#: each known slot. The others wait in the tracker, by priority.
MAX_IN_BROKER: Final = 1000
MAX_IN_BROKER_PER_SLOT: Final = 8

#: Seconds after which the reason for WAITING is logged once.
WARN_AFTER_SECONDS: Final = 5.0

#: Seconds until a waiting request with a published message is checked; the interval doubles.
STRAY_AFTER_SECONDS: Final = 10.0

#: Number of completed requests for snapshots.
MAX_ENDED: Final = 1000

#: Seconds until a message without a queue is published again.
REPUBLISH_PAUSE_SECONDS: Final = 1.0

#: Minimum interval of two heartbeats of a worker that are evaluated separately: a worker may send
#: one heartbeat for each of its topics.
MIN_HEARTBEAT_GAP_SECONDS: Final = 0.25

_MAX_REASON_LENGTH: Final = 500


class Observer(Protocol):
    """Receives events of the requests of an executor, from all of its engines, in any thread.

    Methods must not block or raise.
    """

    def publishing(self, tracked: TrackedRequest, envelope: env.Envelope) -> None:
        """Handle a message before it is published, also repeatedly. Headers may be added."""

    def published(self, tracked: TrackedRequest, error: BaseException | None) -> None:
        """Handle a message that was published, or cannot be published because of `error`."""

    def settled(self, tracked: TrackedRequest, outcome: invocation.Outcome, waited: float) -> None:
        """Handle the outcome of a request after `waited` seconds. The executor's lock is held."""


class RequestTracker:
    """All requests of one executor. Not thread-safe: the owner holds a lock around every call.

    :param plain: whether the workers are TaskFlow's.
    :param wall: returns Unix time. It is needed for `expires` and `eta` that are datetimes, and
        for workers without a ledger.
    """

    def __init__(
        self,
        reply_to: str,
        finder: ProxyWorkerFinder,
        *,
        transition_timeout: float | None = pr.REQUEST_TIMEOUT,
        plain: bool = False,
        options: RequestOptions = RequestOptions(),  # noqa: B008  (frozen)
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.reply_to = reply_to
        self._finder = finder
        self._timeout = transition_timeout
        #: Whether the ledger is separate from the broker. Then results are read from the ledger and
        #: replies only announce them: a program without access to the ledger may forge a reply.
        self.separate_ledger = False
        self._plain = plain
        self._options = options
        self._wall = wall
        self._closed: str | None = None
        #: All requests, by id and by flow.
        self.requests = RequestTable()
        self._order = itertools.count(1)
        # Each request is in at most one of these indexes.
        self._waiting = tracking.RequestIndex()  # By task class.
        self._deferred = tracking.RequestIndex()  # Until their `eta`.
        self._backlog = tracking.Backlog()  # By queue.
        self._in_flight = tracking.InFlight()  # By queue.
        self._held = tracking.RequestIndex()  # By worker.
        # Requests of earlier runs, until it is known whether a worker has them.
        self._inherited = tracking.RequestIndex()
        self._timers = tracking.TimerHeap()
        # Requests that are searched for in each round.
        self._searched: dict[str, TrackedRequest] = {}
        self._asks = Asks()
        # Whether replies may arrive before their requests are submitted, and these replies.
        self._inherits = False
        self._early_replies = tracking.EarlyReplies()
        # By the uuid of the flow: see `expect`.
        self._origins: dict[str, str | None] = {}
        #: Present runs of flows, by the uuid of the flow.
        self.fences: dict[str, Fence] = {}
        # Workers that announced their end, latest last.
        self._ended_workers: deque[str] = deque(maxlen=1000)
        # Time until which the engine needs frequent reports of workers.
        self._frequent_reports_until = 0.0
        self.use_ledger(None)
        self.observers: tuple[Observer, ...] = ()
        #: Number of dropped replies by reason: unknown, late, duplicate, reordered, old_epoch,
        #: unexpected, unreadable, misaddressed.
        self.ignored: Counter[str] = Counter()
        #: The last completed requests, as `described`.
        self.ended: deque[tuple[Any, ...]] = deque(maxlen=MAX_ENDED)

    def use_ledger(self, digest: str | None) -> None:
        """Set the ledger of all further requests, and the rules for uncertain requests."""
        #: Digest of the ledger, if there is one.
        self.ledger = digest
        rules: type[rc.Recovery] = AskRecovery if digest is None else LedgerRecovery
        self._recovery = (TaskFlowRecovery if self._plain else rules)(
            self._finder, self._options, self._in_flight, self._inherited, self._ended_workers
        )

    # Submitting and routing.

    def submit(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Accept a request. If it cannot be encoded, it is settled as a failure at once.

        After a batch, call `ask`: it sends asks about requests that an earlier run may have
        sent.

        :raises Duplicate: if this action of this attempt of the atom is already tracked.
        """
        tracked = TrackedRequest(call, done, self._timeout, now)
        tracked.fence = self.fences.get(tracked.flow, NO_FENCE)
        self.requests.add(tracked)
        call.ticket = tracked
        if self._closed is not None:
            return self._settle_abandoned(tracked, self._closed)
        missing_row_reason = self._origins.get(tracked.flow, "")
        if call.recovered and missing_row_reason is not None:
            tracked.missing_row_reason = missing_row_reason
            # An earlier run has failed each request whose times are not valid.
            with contextlib.suppress(TypeError, ValueError):
                self._read_times(tracked, now)
            effects = self._handle(rc.Inherited(tracked), now)
            if call.cancellation.cancelled and tracked.live:
                tracked.pending_outcome = UNWANTED
                if self.ledger is None:
                    effects += self._cancellations([tracked], env.ALL_WORKERS)
            return effects
        if call.recovered and call.cancellation.cancelled:
            error = exc.Interrupted(f"whether task {call.task.name!r} took effect is unknown")
            return self._settle(tracked, ft.Failure.from_exception(error), now=now)
        if tracked.id in self._early_replies:
            # An earlier run sent this request, and its record was lost. The reply is already here.
            effects = self._accept_early_reply(tracked, now)
            return effects + self._route(tracked, now) if tracked.live else effects
        task = call.task
        if task.eta is not None or task.expires is not None:
            try:
                self._read_times(tracked, now)
            except (TypeError, ValueError) as error:
                return self._settle(tracked, ft.Failure.from_exception(error), now=now)
        return self._route(tracked, now)

    def _read_times(self, tracked: TrackedRequest, now: float) -> None:
        tracked.read_times(now, self._wall())
        if tracked.expires_at is not None:
            self._timers.set(tracked.expires_at, EXPIRY, tracked)

    def _route(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.pending_outcome is not None or (
            tracked.expires_at is not None and now >= tracked.expires_at
        ):
            if tracked.dispatched:
                self._wait(tracked, now)
            return self._expire(tracked, now)
        if tracked.eta is not None and now < tracked.eta:
            self._deferred.put("", tracked)
            self._timers.set(tracked.eta, DUE, tracked)
            return []
        queue = self._finder.queue_for(tracked.task_cls, self._load)
        if queue is None:
            self._wait(tracked, now)
            return []
        if (
            self.ledger is None
            and tracked.queue is not None
            and tracked.unused_epoch > tracked.epoch
        ):
            if queue != tracked.queue:
                return self._handle(rc.Moved(tracked), now)
            self._rejoin(tracked, queue, now)
            return []
        tracked.transition(pr.PENDING)
        tracked.queue = queue
        tracked.position = (-tracked.invocation.priority, next(self._order))
        if self._in_flight.count(queue) >= self._capacity(queue):
            self._backlog.put(queue, tracked)
            return []
        return self._dispatch(tracked, now)

    def _load(self, queue: str) -> int:
        return self._in_flight.count(queue) + self._backlog.count(queue)

    def _capacity(self, queue: str) -> int:
        served = MAX_IN_BROKER_PER_SLOT * self._finder.slots(queue)
        return served if served > MAX_IN_BROKER else MAX_IN_BROKER

    def _wait(self, tracked: TrackedRequest, now: float) -> None:
        if self.ledger is not None or tracked.unused_epoch <= tracked.epoch:
            # Without a ledger, its message may wait in that queue, and need not be resent.
            tracked.queue = None
        if tracked.dispatched and self.ledger is not None:
            self._timers.set(now + STRAY_AFTER_SECONDS, STRAY, tracked)
        self._waiting.put(tracked.task_cls, tracked)
        self._start_clock(tracked, now)
        if self._timeout is None or self._timeout > WARN_AFTER_SECONDS:
            self._timers.set(now + WARN_AFTER_SECONDS, WARN, tracked)

    def _start_clock(self, tracked: TrackedRequest, now: float) -> None:
        tracked.since = now
        if self._timeout is not None:
            self._timers.set(now + self._timeout, TIMEOUT, tracked)

    def _dispatch(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        assert tracked.queue is not None
        expires = None
        if tracked.expires_at is not None and self.ledger is None:
            expires = self._wall() + tracked.expires_at - now
        try:
            envelope = tracked.envelope(
                self.reply_to,
                self._options,
                extended=self._finder.uses_extended_protocol(tracked.queue),
                ledger=self.ledger,
                expires=expires,
            )
        except Exception as error:  # An invalid argument fails only its own task.
            return self._settle(tracked, ft.Failure.from_exception(error), now=now)
        tracked.sent_at = None  # Set when the new message is published.
        is_resend = tracked.index is self._in_flight
        tracked.dispatched, tracked.unused_epoch = True, tracked.epoch + 1
        self._in_flight.put(tracked.queue, tracked)
        if not is_resend:  # A resend does not restart the timeout.
            self._start_clock(tracked, now)
        return [fx.Dispatch(tracked, tracked.epoch, envelope)]

    def _refill(self, queue: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._closed is None and (tracked := self._backlog.first(queue)) is not None:
            if self._in_flight.count(queue) >= self._capacity(queue):
                break
            effects += self._dispatch(tracked, now)
        return effects

    def unserved(self) -> dict[str, int]:
        """Return the number of requests that no known worker can run, by class of the task."""
        return {name: self._waiting.count(name) for name in self._waiting.names()}

    def on_workers_gained(self, names: Iterable[str], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for name in names:
            for tracked in self._waiting.get(name):
                tracked.leave_index()
                effects += self._route(tracked, now)
        return effects

    # Replies.

    def on_reply(
        self, reply: Reply, receipt: Any, now: float, *, stored: bool = False
    ) -> list[Effect]:
        """Process a reply. Duplicate, late and misaddressed replies change nothing.

        The receipt of a terminal reply is acknowledged only after its outcome was saved.

        :param stored: whether the reply comes from a row.
        """
        tracked: TrackedRequest | None = None
        reason: str | None = "misaddressed"
        if reply.to in ("", self.reply_to):  # Any process may publish to all engines.
            tracked = self.requests.get(reply.request_id)
            reason = "unknown" if tracked is None else tracked.refusal(reply)
        if tracked is None or reason is not None:
            return self._on_dropped_reply(tracked, reason or "unknown", reply, receipt, now)
        if reply.is_lost:
            epoch = tracked.epoch if reply.epoch is None else reply.epoch
            effects = self.on_event(rc.Redelivered(tracked, epoch), now)
            return [*effects, fx.Acknowledge(receipt)]
        ends = reply.state in pr.STOP_STATES
        if ends and self.separate_ledger and not stored:
            if reply.state == pr.FAILURE:
                tracked.refused = reply.value()
            return [fx.Inspect(tracked), fx.Acknowledge(receipt)]
        # The reply to an ask contains the start time if the request runs.
        waits = reply.ask_number is not None and reply.started_at is None
        effects = self._started(tracked, reply.worker, now, ends, waits=waits)
        if tracked.lookups and (self.ledger is None or reply.ask_number is not None):
            tracked.lookups = 0
        if ends:
            tracked.receipt = receipt
            # Without a ledger, an earlier copy may end first, on another worker than the latest.
            tracked.worker = reply.worker or tracked.worker
            return effects + self._settle(
                tracked, reply.value(), started=reply.started_at, ended=reply.ended_at, now=now
            )
        if reply.state == pr.EVENT and tracked.invocation.events is not None:
            details = reply.details()
            if details is None:
                self.ignored["unreadable"] += 1
            else:
                effects.append(fx.ForwardEvent(tracked, reply.data["event_type"], details))
        effects.append(fx.Acknowledge(receipt))
        return effects

    def _on_dropped_reply(
        self,
        tracked: TrackedRequest | None,
        reason: str,
        reply: Reply,
        receipt: Any,
        now: float,
    ) -> list[Effect]:
        if tracked is not None and tracked.live and reply.ask_number is not None:
            effects = self._on_report(tracked, reply, reply.ask_number, now)
            return [*effects, fx.Acknowledge(receipt)]
        if reason == "unknown" and self._inherits and reply.state in pr.STOP_STATES:
            # Its request may be submitted later.
            rejected = self._early_replies.keep(reply, receipt)
            return [] if rejected is None else [fx.Acknowledge(rejected)]
        self.ignored[reason] += 1
        if reason == "misaddressed":
            LOG.warning("refused a reply to %.80r, which is not this engine", reply.to)
        else:
            LOG.debug(
                "ignored %s for request %s (epoch %s, worker %s): %s",
                reply.state, reply.request_id, reply.epoch, reply.worker, reason,
            )  # fmt: skip
        return [fx.Acknowledge(receipt)]

    def _on_report(
        self, tracked: TrackedRequest, reply: Reply, number: int, now: float
    ) -> list[Effect]:
        """Handle a report of a worker about whether it has a request of this engine.

        Number 0 marks a report without an ask: another worker has claimed the request, or its
        replies have another address.
        """
        if reply.state == pr.RUNNING:
            if number != tracked.number or not tracked.is_current_reply(reply):
                return []
            tracked.lookups = 0
            has_started = tracked.claimed and reply.started_at is not None
            return self._began(tracked, reply.worker) if has_started else []
        if number not in (0, tracked.number):
            return []
        event = rc.Denied(tracked, reply.worker) if number else rc.ClaimRefused(tracked)
        return self.on_event(event, now)

    def _accept_early_reply(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        early = self._early_replies.pop(tracked.id, None)
        if early is None:
            return []
        reply, receipt = early
        if self.ledger is None:  # Any result of this attempt is valid.
            tracked.adopt(reply.epoch)
        return self.on_reply(reply, receipt, now)

    def _started(
        self,
        tracked: TrackedRequest,
        worker: str | None,
        now: float,
        ends: bool = False,
        *,
        waits: bool = False,
    ) -> list[Effect]:
        """Record that a worker has the request.

        :param ends: whether the reply is terminal.
        :param waits: whether the worker may still wait for a free slot.
        """
        if tracked.current_state == pr.RUNNING:
            return self._began(tracked, worker) if tracked.claimed and not (waits or ends) else []
        if tracked.current_state == pr.WAITING:
            tracked.transition(pr.PENDING)
        tracked.transition(pr.RUNNING)
        tracked.ran = True
        queue = tracked.queue if tracked.index is self._in_flight else None
        if queue is not None:
            self._in_flight.record_consumed(tracked, now)
        else:
            tracked.leave_index()
        if worker is not None and ends:
            self._finder.watch(worker)
        elif worker is not None:
            self._hold(tracked, worker)
        elif self._plain and not ends and tracked.queue is not None:
            self._held.put(anonymous_key(tracked.queue), tracked)
        effects = self._refill(queue, now) if queue is not None else []
        if worker is not None and not ends:
            tracked.claimed = waits
            effects += (
                fx.record(tracked, "taken", worker) if waits else self._began(tracked, worker)
            )
        if tracked.pending_outcome == CANCELLED and not ends:
            effects += self._cancellations([tracked], worker or env.ALL_WORKERS)
        return effects

    def _began(self, tracked: TrackedRequest, worker: str | None) -> list[Effect]:
        tracked.claimed = False
        return fx.record(tracked, "began", worker) if worker is not None else []

    def _hold(self, tracked: TrackedRequest, worker: str, silence: float = 0.0) -> None:
        tracked.worker = worker
        self._held.put(worker, tracked)
        self._finder.watch(worker, silence)

    def holds(self, worker: str) -> bool:
        return self._held.count(worker) > 0

    def _settle(
        self,
        tracked: TrackedRequest,
        value: Any,
        *,
        now: float,
        started: float | None = None,
        ended: float | None = None,
    ) -> list[Effect]:
        ran = tracked.state == pr.RUNNING
        tracked.transition(pr.FAILURE if isinstance(value, ft.Failure) else pr.SUCCESS)
        queue = tracked.queue if tracked.index is self._in_flight else None
        tracked.leave_index()
        worker = (tracked.worker or tracked.queue) if ran else None
        outcome = invocation.Outcome(value, worker or LOCAL, started, ended)
        failure = value.exception_str if isinstance(value, ft.Failure) else None
        self.ended.append(tracked.described(started, ended, failure))
        for observer in self.observers:
            observer.settled(tracked, outcome, now - tracked.born)
        effects: list[Effect] = [fx.Settle(tracked, outcome)]
        return effects + self._refill(queue, now) if queue is not None else effects

    def on_saved(self, calls: Iterable[invocation.Invocation]) -> list[Effect]:
        """Forget requests with saved outcomes, drop their rows and acknowledge their replies."""
        effects: list[Effect] = []
        for call in calls:
            tracked = call.ticket
            if not isinstance(tracked, TrackedRequest) or tracked.live:
                continue
            if self.requests.get(tracked.id) is not tracked:
                continue
            self.requests.remove(tracked)
            call.ticket = None
            if tracked.dispatched:
                effects.append(fx.Drop(tracked.id))
            if tracked.receipt is not None:
                effects.append(fx.Acknowledge(tracked.receipt))
                tracked.receipt = None
        self._timers.tidy(len(self.requests))
        return effects

    # Time.

    def next_timer(self) -> float | None:
        return self._timers.next()

    def on_timer(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        warned: set[str] = set()
        for kind, tracked in self._timers.due(now):
            if kind == WARN:
                if tracked.state == pr.WAITING and tracked.task_cls not in warned:
                    warned.add(tracked.task_cls)  # Thousands of requests may wait for one reason.
                    LOG.warning("%s", self._why_waiting(tracked, now))
            elif kind != TIMEOUT:
                effects += self._on_due(kind, tracked, now)
            elif tracked.expired_at(now):
                effects += self._check_timeout(tracked, now)
        return effects + self.ask() if self._asks.pending else effects

    def _on_due(self, kind: str, tracked: TrackedRequest, now: float) -> list[Effect]:
        if kind == LOOKUP:
            return self._handle(rc.CheckDue(tracked), now) if tracked.lookups else []
        if kind == EXPIRY:
            # After its check, an inherited request is not sent any more.
            return [] if tracked.index is self._inherited else self._expire(tracked, now)
        if kind == REPUBLISH:
            return self._republish(tracked, now)
        if kind == DUE:
            if tracked.index is not self._deferred:
                return []
            tracked.leave_index()
            return self._route(tracked, now)
        if tracked.index is not self._waiting or not tracked.dispatched:
            return []
        waited = now - tracked.since
        self._timers.set(now + max(STRAY_AFTER_SECONDS, min(60.0, waited)), STRAY, tracked)
        return [fx.Inspect(tracked)]

    def _check_timeout(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        missed = self._finder.outage_seconds(tracked.since, now)
        if missed and tracked.timeout is not None:
            tracked.since += missed  # The engine received no reports in this time.
            if not tracked.expired_at(now):
                self._timers.set(tracked.since + tracked.timeout, TIMEOUT, tracked)
                return []
        if tracked.index is self._inherited:
            queue = self._finder.queue_for(tracked.task_cls, self._load)
            if queue is not None and self._finder.slots(queue) and not self._finder.free(queue):
                # The workers are busy, and may not have received the request yet.
                self._start_final_timeout(tracked, now)
                return []
            return self._handle(rc.TimedOut(tracked), now)
        if tracked.sent_at is not None and tracked.sent_at - tracked.since > STANDSTILL_SECONDS:
            remaining = tracked.sent_at + 2 * STANDSTILL_SECONDS - now
            if remaining > 0:  # The request was resent recently.
                self._timers.set(now + remaining, TIMEOUT, tracked)
                return []
        if not tracked.dispatched and tracked.state == pr.WAITING:
            return self._time_out(tracked, now)
        if tracked.index is self._backlog or (
            tracked.index is self._in_flight and self._queue_progresses(tracked, now)
        ):
            self._start_clock(tracked, now)
            return []
        return self._handle(rc.TimedOut(tracked), now)

    def _start_final_timeout(self, tracked: TrackedRequest, now: float) -> None:
        tracked.transition(pr.PENDING)
        tracked.timeout = float(pr.REQUEST_TIMEOUT) if self._timeout is None else self._timeout
        tracked.since = now
        self._timers.set(now + tracked.timeout, TIMEOUT, tracked)

    def _queue_progresses(self, tracked: TrackedRequest, now: float) -> bool:
        """Return whether a request waits only for other requests. Its timeout then restarts."""
        queue = tracked.queue
        if queue is None or not self._finder.slots(queue):
            return False
        if self._plain:  # Plain workers do not report their number of slots.
            return self._held.count(anonymous_key(queue)) > 0
        if not self._finder.free(queue):
            return True
        sent = tracked.sent_at or 0.0
        if now - sent < 2 * self._finder.period and not self._finder.report_rounds(queue, sent):
            return True  # The last report of free slots is older than this request.
        # A slot may be free for a moment between two tasks. Then consumption advances towards this
        # request.
        return self._in_flight.is_approached(tracked)

    def on_unsent(self, tracked: TrackedRequest, error: BaseException, now: float) -> list[Effect]:
        """Fail a request that cannot be published for a reason other than a broker failure."""
        if not tracked.live:
            return []
        return self._settle(tracked, ft.Failure.from_exception(error), now=now)

    def _time_out(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.ran:
            return self._settle(tracked, tracked.loss(), now=now)
        # Without a ledger, a worker may still run a published message. If an earlier run may have
        # sent the request, its epochs are unknown. In both cases the request may have started.
        certain = not tracked.dispatched or (
            self.ledger is not None and not tracked.invocation.recovered
        )
        kind = exc.NeverStarted if certain else exc.RequestTimeout
        error = kind(self._why_waiting(tracked, now))
        return self._settle(tracked, ft.Failure.from_exception(error), now=now)

    def _why_waiting(self, tracked: TrackedRequest, now: float) -> str:
        name, waited = tracked.invocation.task.name, now - tracked.since
        if tracked.queue is not None and tracked.state == pr.PENDING:
            why = f"the workers of {tracked.queue!r} offer it, but none has started it"
        else:
            why = self._finder.why_unserved(tracked.task_cls)
        return f"task {name!r} has waited {waited:.1f} s: {why}"

    # Earlier runs.

    def expect(self, flow: str, missing_row_reason: str | None) -> None:
        """Prepare for requests of earlier runs of a flow, until `end_run` is called.

        :param missing_row_reason: why rows of these requests may not be in the present ledger;
            "": they are in it; None: no earlier run has sent requests.
        """
        self._origins[flow] = missing_row_reason

    def end_run(self, flow: str) -> None:
        self._origins.pop(flow, None)
        self.fences.pop(flow, None)

    def inherit(self, reply_to: str) -> None:
        """Take over the name of an earlier tracker, and the replies to it."""
        self.reply_to = reply_to
        self._inherits = True

    def disown(self, flow: str | None = None) -> None:
        """Forget all requests (of one flow) without a result: another engine continues the flow."""
        for tracked in self.requests.of_flow(flow):
            self.forget(tracked)
        if flow is None:
            self._early_replies.clear()

    # Workers.

    @property
    def is_searching(self) -> bool:
        """Whether reports of workers are urgent, because a request is searched for."""
        return bool(self._searched)

    def needs_reports(self, now: float) -> bool:
        """Return whether frequent reports of workers could show why requests wait."""
        if now < self._frequent_reports_until or self._waiting:
            return True
        return any(self._in_flight.is_stalled(queue, now) for queue in self._in_flight.names())

    def on_round(self, now: float) -> list[Effect]:
        """Check requests that were sent but not started, once per round of heartbeats.

        Cost: at most O(requests in the broker).
        """
        effects = self._apply(self._recovery.review_inherited(now), now)
        for tracked in list(self._searched.values()):
            if tracked.in_doubt:
                effects += self._handle(rc.RoundEnded(tracked), now)
            if not tracked.in_doubt:
                del self._searched[tracked.id]
        for queue in self._in_flight.names():
            effects += self._apply(self._recovery.review_queue(queue, now), now)
        for queue in self._backlog.names():
            if self._finder.rests(queue):
                effects += self._leave_backlog(queue, now)
            # Earlier requests of the queue may have been removed.
            effects += self._refill(queue, now)
        return effects + self.ask()

    def _leave_backlog(self, queue: str, now: float) -> list[Effect]:
        """Route the backlog of a queue that rests again, if another queue accepts the tasks."""
        backlog = self._backlog.get(queue)
        names = {tracked.task_cls for tracked in backlog}
        accepted = {name for name in names if self._finder.is_avoided(queue, name)}
        leaving = [tracked for tracked in backlog if tracked.task_cls in accepted]
        leaving.sort(key=lambda each: each.position)
        return [effect for tracked in leaving for effect in self._reroute(tracked, now)]

    def on_heartbeat(self, worker: str, ids: Collection[str], now: float) -> list[Effect]:
        """Handle the list of requests that a worker runs for this engine.

        A request that is missing in two heartbeats is checked, because its reply may be lost.
        """
        effects: list[Effect] = []
        for tracked in self._held.get(worker):
            if tracked.id in ids:
                tracked.absent_since = None
                if tracked.pending_outcome == CANCELLED:
                    effects += self._cancellations([tracked], worker)
            elif tracked.absent_since is None:
                tracked.absent_since = now
            elif now - tracked.absent_since >= MIN_HEARTBEAT_GAP_SECONDS and not tracked.lookups:
                tracked.absent_since = None
                effects += self._handle(rc.Absent(tracked), now)
        return effects + self.ask() if self._asks.pending else effects

    def on_workers_lost(self, workers: Iterable[TopicWorker], now: float) -> list[Effect]:
        """Handle workers that stopped or were lost.

        A request that such a worker claimed and did not complete is lost: it may have taken effect.
        Unclaimed requests remain for the other workers of the queue, or are routed again if there
        are none.
        """
        effects: list[Effect] = []
        for worker in workers:
            name = worker.identity if isinstance(worker.identity, str) else None
            claimed_requests = self._held.get(name or anonymous_key(worker.queue))
            is_unserved = self._finder.slots(worker.queue) == 0
            self._in_flight.record_loss(worker.queue, now)
            if name is not None and worker.announced_end:
                self._ended_workers.append(name)
            for tracked in claimed_requests:
                effects += self._handle(rc.OwnerLost(tracked, name), now)
            if is_unserved:
                while waiting := self._backlog.first(worker.queue):
                    effects += self._reroute(waiting, now)
            decisions = self._recovery.on_queue_lost_worker(worker.queue, name, is_unserved)
            effects += self._apply(decisions, now)
        return effects

    # Results of publishing, and events.

    def on_unrouted(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """Handle a `Dispatch` for which the broker had no queue: no worker receives the message."""
        if tracked.live and tracked.epoch == epoch and tracked.index is self._in_flight:
            tracked.sent_at = None
            self._timers.set(now + REPUBLISH_PAUSE_SECONDS, REPUBLISH, tracked)
        return []

    def _republish(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.index is not self._in_flight or tracked.sent_at is not None:
            return []
        assert tracked.queue is not None
        if self._finder.slots(tracked.queue):
            return self._dispatch(tracked, now)
        # `on_workers_lost` routes it again.
        self._timers.set(now + REPUBLISH_PAUSE_SECONDS, REPUBLISH, tracked)
        return []

    def on_unconfirmed(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """Handle a `Dispatch` that the broker neither confirmed nor refused."""
        if tracked.epoch != epoch or tracked.index is not self._in_flight:
            return []
        return self.on_event(rc.Unconfirmed(tracked), now)

    def on_event(self, event: rc.Event, now: float) -> list[Effect]:
        """Handle an event of a request whose progress is uncertain."""
        return self._handle(event, now) + self.ask() if event.tracked.live else []

    # Decisions.

    def ask(self) -> list[Effect]:
        """Send the collected asks to workers in few messages."""
        return self._asks.take(self.reply_to) if self._asks.pending else []

    def _handle(self, event: rc.Event, now: float) -> list[Effect]:
        return self._apply(self._recovery.on_event(event, now), now)

    def _apply(self, decisions: Iterable[rc.Decision], now: float) -> list[Effect]:
        """Apply decisions, in order. Those about requests that have ended have no effect."""
        effects: list[Effect] = []
        for decision in decisions:
            if decision.tracked.live:
                effects += self._perform(decision, decision.tracked, now)
        return effects

    def _perform(self, decision: rc.Decision, tracked: TrackedRequest, now: float) -> list[Effect]:
        match decision:
            case fx.Inspect() | fx.Revoke() | fx.Reopen() | fx.Conclude():
                return [decision]
            case rc.Hold(_, worker, silence):
                effects = self._started(tracked, worker, now, waits=worker is not None)
                if worker is not None and (tracked.worker != worker or silence):
                    self._hold(tracked, worker, silence)
                return effects
            case rc.Send(_, lost):
                return self._send(tracked, now, lost)
            case rc.Reroute():
                return self._reroute(tracked, now)
            case rc.Republish():
                return self._dispatch(tracked, now)
            case rc.AcceptStored(_, reply):
                _, receipt = self._early_replies.pop(tracked.id, (None, None))
                return self.on_reply(reply, receipt, now, stored=True)
            case rc.AcceptEarly():
                return self._accept_early_reply(tracked, now)
            case rc.Settle(_, failure):
                return self._settle(tracked, failure, now=now)
            case rc.Lose(_, failure, exhausted):
                return self._settle_lost(tracked, failure, exhausted, now)
            case rc.TimeOut():
                return self._time_out(tracked, now)
            case rc.Cancel():
                return self._cancellations([tracked], env.ALL_WORKERS)
            case rc.Inherit():
                tracked.dispatched = True
                self._inherited.put(tracked.task_cls, tracked)
            case rc.Wait():
                self._wait(tracked, now)
            case rc.CheckLater():
                self._check_later(tracked, now)
            case rc.RestartTimeout():
                self._start_clock(tracked, now)
            case rc.StartFinalTimeout():
                self._start_final_timeout(tracked, now)
            case rc.Search():
                self._searched[tracked.id] = tracked
            case rc.Ask(_, to):
                self._asks.ask(tracked, to)
            case rc.AskQueue():
                self._asks.ask_queue(tracked)
            case rc.Refuse():
                self._asks.refuse(tracked)
        return []

    def _check_later(self, tracked: TrackedRequest, now: float) -> None:
        self._timers.set(now + rc.lookup_pause(tracked.lookups), LOOKUP, tracked)
        tracked.lookups += 1
        self._frequent_reports_until = max(
            self._frequent_reports_until, now + 2 * rc.MAX_LOOKUP_PAUSE_SECONDS
        )

    def _reroute(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        # Not `transition`, which does not permit PENDING to WAITING.
        tracked.current_state = pr.WAITING
        queue = tracked.key if tracked.index is self._in_flight else None
        tracked.leave_index()
        effects = self._route(tracked, now)
        if queue is not None and self._finder.slots(queue):
            effects += self._refill(queue, now)
        return effects

    def _rejoin(self, tracked: TrackedRequest, queue: str, now: float) -> None:
        tracked.search_started_at = now
        tracked.transition(pr.PENDING)
        self._in_flight.put(queue, tracked)
        if tracked.sent_at is not None:
            tracked.possibly_lost |= self._in_flight.last_loss(queue) > tracked.sent_at
            tracked.sent_at = now  # The workers have not yet had the chance to start it.
        self._start_clock(tracked, now)

    def _send(self, tracked: TrackedRequest, now: float, lost: bool) -> list[Effect]:
        """Send a request under a new epoch, or settle it if it has an outcome or has expired."""
        if tracked.expires_at is not None and now >= tracked.expires_at:
            tracked.pending_outcome = tracked.pending_outcome or EXPIRED
        if tracked.pending_outcome is not None:
            return self._settle(tracked, tracked.failure_before_start(), now=now)
        was_inherited = tracked.index is self._inherited
        effects: list[Effect] = []
        if lost:
            effects += fx.record(tracked, "incident", states.WORKER_LOST, tracked.worker)
        if lost or not was_inherited:
            effects += fx.record(tracked, "incident", states.RESENT, tracked.worker)
        tracked.worker = tracked.lost = tracked.queue = None
        tracked.denied = False
        tracked.next_epoch(tracked.next_number)
        if was_inherited and self.ledger is None:
            tracked.lowest_epoch = 0  # Any result of this attempt is valid.
        return effects + self._reroute(tracked, now)

    def _settle_lost(
        self, tracked: TrackedRequest, failure: ft.Failure, exhausted: bool, now: float
    ) -> list[Effect]:
        effects = fx.record(tracked, "incident", states.WORKER_LOST, tracked.worker)
        if exhausted:
            effects += self._dead_letter(tracked, failure)
        return effects + self._settle(tracked, failure, now=now)

    def _dead_letter(self, tracked: TrackedRequest, failure: ft.Failure) -> list[Effect]:
        try:
            letter = tracked.envelope(
                self.reply_to, self._options, extended=True, ledger=self.ledger
            )
        except Exception as error:  # The arguments were changed after the request was sent.
            LOG.warning("request %s cannot be moved to the dead letters: %s", tracked.id, error)
            return []
        letter.persistent = True
        Death(failure.exception_str[:_MAX_REASON_LENGTH], tracked.queue, self._wall()).mark(letter)
        return [fx.MoveToDeadLetters(letter)]

    # Outcomes without a reply: cancelled, expired, released or abandoned.

    def cancel(self, calls: Iterable[invocation.Invocation], now: float) -> list[Effect]:
        """Cancel requests (see `TaskExecutor.cancel`). Idempotent."""
        effects: list[Effect] = []
        by_worker: dict[str, list[TrackedRequest]] = {}
        for call in calls:
            tracked = call.ticket
            if not isinstance(tracked, TrackedRequest) or not tracked.live:
                continue
            is_cancelled, tracked.pending_outcome = tracked.pending_outcome == CANCELLED, CANCELLED
            if tracked.state == pr.RUNNING:
                by_worker.setdefault(tracked.worker or env.ALL_WORKERS, []).append(tracked)
            elif not is_cancelled:
                effects += self._prevent_start(tracked, now)
                if tracked.live and self.ledger is None:
                    by_worker.setdefault(env.ALL_WORKERS, []).append(tracked)
        for worker, group in by_worker.items():
            effects += self._cancellations(group, worker)
        return effects + self.ask()

    def _expire(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.pending_outcome is not None or tracked.state not in pr.WAITING_STATES:
            return []
        tracked.pending_outcome = EXPIRED
        return self._prevent_start(tracked, now)

    def _prevent_start(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if not tracked.dispatched:
            return self._settle(tracked, tracked.failure_before_start(), now=now)
        if tracked.index is self._inherited:
            return []  # A check of the request is in progress.
        return self._handle(rc.StartRefused(tracked), now)

    def _cancellations(self, requests: Iterable[TrackedRequest], to: str) -> list[Effect]:
        by_flow: dict[str, list[worker_commands.Named]] = {}
        for tracked in requests:
            by_flow.setdefault(tracked.flow, []).append((tracked.id, tracked.number))
        return [
            fx.Cancel(message, flow)
            for flow, named in by_flow.items()
            for message in worker_commands.cancellations(named, to)
        ]

    def is_inherited(self, tracked: TrackedRequest) -> bool:
        return tracked.index is self._inherited

    def forget(self, tracked: TrackedRequest) -> None:
        if tracked.live:
            tracked.release_waiters()
        tracked.leave_index()
        tracked.queue = None
        tracked.epoch = WITHDRAWN
        tracked.invocation.ticket = None
        self.requests.remove(tracked)
        self._timers.tidy(len(self.requests))

    def close(self, reason: str, kept_flows: Collection[str] = ()) -> list[Effect]:
        """Settle all remaining requests as failed, and all later ones."""
        self._closed = reason
        return self.abandon(reason, kept_flows=kept_flows)

    def abandon(
        self, reason: str, flow: str | None = None, kept_flows: Collection[str] = ()
    ) -> list[Effect]:
        """Settle all remaining requests (of one flow) as failed, and forget them.

        The rows of the flows in `kept_flows` are kept for the next run, because their failures may
        not be saved.
        """
        live = self.requests.unfinished(flow)
        effects = [effect for tracked in live for effect in self._settle_abandoned(tracked, reason)]
        for tracked in live:
            if tracked.invocation.flow_uuid in kept_flows:
                self.forget(tracked)
        return effects + self.on_saved(tracked.invocation for tracked in live)

    def _settle_abandoned(self, tracked: TrackedRequest, reason: str) -> list[Effect]:
        error = exc.ExecutionFailure(
            f"task {tracked.invocation.task.name!r} was abandoned in state"
            f" {tracked.state}: {reason}"
        )
        return self._settle(tracked, ft.Failure.from_exception(error), now=tracked.since)

    def reopen(self) -> None:
        self._closed = None
        # Their connection is closed, so they cannot be acknowledged.
        self._early_replies.clear()
