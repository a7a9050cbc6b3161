"""All requests of an executor, from submission to their outcome, without I/O.

`RequestTracker` receives invocations, replies, changes of workers and the time. It returns
*effects*, which its owner performs in that order. It has no thread, lock or clock, so that tests
can replay any history.

A request is WAITING while no known worker offers its task. It is PENDING from the time at which it
is routed to a queue, and RUNNING when a worker has it. It has exactly one outcome: the first
terminal reply of the current epoch. All other replies are dropped. `recovery` handles requests
whose worker or engine was lost.
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
from wbengine.engines.worker_based.discovery.roster import TopicWorker, anonymous_key
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import headers as hd
from wbengine.engines.worker_based.messages import worker_commands
from wbengine.engines.worker_based.messages.replies import Reply
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import tracked as tracking
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.engines.worker_based.requests.recovery import (
    STANDSTILL_SECONDS,
    Recovery,
    RowSnapshot,
)
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
from wbengine.running import LOCAL
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

#: Maximum number of names in an error message.
_MAX_NAMED: Final = 8


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

    `wall` returns Unix time. It is needed for `expires` and `eta` that are datetimes, and for
    workers without a ledger.
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
        #: Digest of the ledger, if there is one.
        self.ledger = ledger
        #: Whether the ledger is separate from the broker. Then results are read from the ledger and
        #: replies only announce them: programs without access to the ledger could publish replies.
        self.separate_ledger = False
        #: Whether the workers are TaskFlow's. Their replies have no numbers, so nothing is resent.
        self.plain = False
        self.options = options
        self.wall = wall
        self.closed: str | None = None
        self.requests: dict[str, TrackedRequest] = {}
        self._flows: dict[str, dict[str, TrackedRequest]] = {}
        self._order = itertools.count(1)
        # Each request is in at most one of these indexes.
        self.waiting = tracking.RequestIndex()  # By task class.
        self.deferred = tracking.RequestIndex()  # Until their `eta`.
        self.backlog = tracking.Backlog()  # By queue.
        self.in_flight = tracking.InFlight()  # By queue.
        self.held = tracking.RequestIndex()  # By worker.
        # Requests of earlier runs, until it is known whether a worker has them.
        self.inherited = tracking.RequestIndex()
        self.timers = tracking.TimerHeap()
        self._recovery = Recovery(self)
        self.observers: tuple[Observer, ...] = ()
        #: Number of dropped replies by reason: unknown, late, duplicate, reordered, old_epoch,
        #: unexpected, unreadable, misaddressed.
        self.ignored: Counter[str] = Counter()
        #: The last completed requests, as `described`.
        self.ended: deque[tuple[Any, ...]] = deque(maxlen=MAX_ENDED)

    def __len__(self) -> int:
        return len(self.requests)

    # Submitting and routing.

    def submit(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Accept a request. If it cannot be encoded, it is settled as a failure at once.

        Call `ask` after the last request of a batch: an earlier run may have sent some of them.

        :raises Duplicate: if this action of this attempt of the atom is already tracked.
        """
        if call.recovered:
            return self._recovery.recover(call, done, now)
        tracked = self.admit(call, done, now)
        if self.closed is not None:
            return self.settle_abandoned(tracked, self.closed)
        if self._recovery.early_replies and tracked.id in self._recovery.early_replies:
            # An earlier run sent this request, and its record was lost. The reply is already here.
            effects = self._recovery.process_early_reply(tracked, now)
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
            return self._recovery.route_again(tracked, queue, now)
        tracked.request.transition(pr.PENDING)
        tracked.queue = queue
        tracked.position = (-tracked.invocation.priority, next(self._order))
        if self.in_flight.count(queue) >= self._capacity(queue):
            self.backlog.put(queue, tracked)
            return []
        return self.dispatch(tracked, now)

    def load(self, queue: str) -> int:
        return self.in_flight.count(queue) + self.backlog.count(queue)

    def _capacity(self, queue: str) -> int:
        served = MAX_IN_BROKER_PER_SLOT * self.offers.slots(queue)
        return served if served > MAX_IN_BROKER else MAX_IN_BROKER

    def wait(self, tracked: TrackedRequest, now: float) -> None:
        if self.ledger is not None or tracked.unused_epoch <= tracked.epoch:
            # Without a ledger, its message may wait in that queue, and need not be resent.
            tracked.queue = None
        if tracked.dispatched and self.ledger is not None:
            self.timers.set(now + STRAY_AFTER_SECONDS, STRAY, tracked)
        self.waiting.put(tracked.task_cls, tracked)
        self.start_clock(tracked, now)
        if self.timeout is None or self.timeout > WARN_AFTER_SECONDS:
            self.timers.set(now + WARN_AFTER_SECONDS, WARN, tracked)

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
                extended=self.offers.uses_extended_protocol(tracked.queue),
                ledger=self.ledger,
            )
        except Exception as error:  # An invalid argument fails only its own task.
            return self.settle(tracked, ft.Failure.from_exception(error), now=now)
        if tracked.expires_at is not None and self.ledger is None:
            envelope.headers[hd.EXPIRES] = self.wall() + tracked.expires_at - now
        tracked.sent_at = None  # Set when the new message is published.
        is_resend = tracked.index is self.in_flight
        tracked.dispatched, tracked.unused_epoch = True, tracked.epoch + 1
        self.in_flight.put(tracked.queue, tracked)
        if not is_resend:  # A resend does not restart the timeout.
            self.start_clock(tracked, now)
        return [fx.Dispatch(tracked, tracked.epoch, envelope)]

    def refill(self, queue: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self.closed is None and (tracked := self.backlog.first(queue)) is not None:
            if self.in_flight.count(queue) >= self._capacity(queue):
                break
            effects += self.dispatch(tracked, now)
        return effects

    def on_workers_gained(self, names: Iterable[str], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for name in names:
            for tracked in self.waiting.get(name):
                tracked.leave_index()
                effects += self.route(tracked, now)
        return effects

    def keep_times(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Store `eta` and `expires`; if they are not valid, settle the request as failed."""
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
            return  # Times do not apply to a revert.
        if task.eta is not None:
            label = f"eta of task {task.name!r}"
            tracked.eta = start_times.moment(task.eta, label, now, self.wall())
        if task.expires is not None:
            label = f"expires of task {task.name!r}"
            tracked.expires_at = start_times.moment(task.expires, label, now, self.wall())

    # Replies.

    def on_reply(
        self, answer: env.Envelope, receipt: Any, now: float, *, stored: bool = False
    ) -> list[Effect]:
        """Process a validated RESPONSE. Duplicate, late and misaddressed replies change nothing.

        The receipt of a terminal reply is acknowledged only after its outcome was saved.
        Replies to other names are rejected, because any process may publish to all engines.

        :param stored: whether the reply comes from a row.
        """
        if answer.routing_key not in ("", self.reply_to):  # A reply from the ledger has no key.
            self.ignored["misaddressed"] += 1
            LOG.warning("refused a reply to %.80r, which is not this engine", answer.routing_key)
            return [fx.Acknowledge(receipt)]
        tracked = self.requests.get(answer.correlation_id or "")
        reason = tracked.refusal(answer) if tracked is not None else "unknown"
        if tracked is None or reason is not None:
            return self._on_dropped_reply(tracked, reason or "unknown", answer, receipt, now)
        if hd.WBE_LOST in answer.headers and answer.body["state"] == pr.FAILURE:
            effects = self._recovery.on_redelivered(tracked, answer, now)
            return [*effects, fx.Acknowledge(receipt)]
        ends = answer.body["state"] in pr.STOP_STATES
        if ends and self.separate_ledger and not stored:
            if answer.body["state"] == pr.FAILURE:
                tracked.refused = Reply.from_message(answer).value()
            return [fx.Inspect(tracked), fx.Acknowledge(receipt)]
        # The reply to an inquiry contains the start time if the request runs.
        waits = hd.WBE_ASK in answer.headers and hd.WBE_STARTED not in answer.headers
        worker = answer.text(hd.WBE_WORKER)
        effects = self.started(tracked, worker, now, ends, waits=waits)
        if tracked.lookups and (self.ledger is None or hd.WBE_ASK in answer.headers):
            tracked.lookups = 0
        if ends:
            tracked.receipt = receipt
            return effects + self.settle(
                tracked,
                Reply.from_message(answer).value(),
                started=answer.seconds(hd.WBE_STARTED),
                ended=answer.seconds(hd.WBE_ENDED),
                now=now,
            )
        if answer.body["state"] == pr.EVENT and tracked.invocation.events is not None:
            details = Reply.from_message(answer).details()
            if details is None:
                self.ignored["unreadable"] += 1
            else:
                effects.append(fx.ForwardEvent(tracked, answer.body["data"]["event_type"], details))
        effects.append(fx.Acknowledge(receipt))
        return effects

    def _on_dropped_reply(
        self,
        tracked: TrackedRequest | None,
        reason: str,
        answer: env.Envelope,
        receipt: Any,
        now: float,
    ) -> list[Effect]:
        if tracked is not None and tracked.live and hd.WBE_ASK in answer.headers:
            return [*self._recovery.on_report(tracked, answer, now), fx.Acknowledge(receipt)]
        if tracked is None and self._recovery.inherits and answer.body["state"] in pr.STOP_STATES:
            return self._recovery.keep_early_reply(answer, receipt)
        self.ignored[reason] += 1
        LOG.debug(
            "ignored %s for request %s (epoch %s, worker %s): %s",
            answer.body["state"], answer.correlation_id, answer.headers.get(hd.WBE_EPOCH),
            answer.text(hd.WBE_WORKER), reason,
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
        """Record that a worker has the request.

        :param ends: whether the reply is terminal.
        :param waits: whether the worker may still wait for a free slot.
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
            self.in_flight.record_consumed(tracked, now)
        else:
            tracked.leave_index()
        if worker is not None and ends:
            tracked.worker = worker
            self.offers.watch(worker)
        elif worker is not None:
            self.hold(tracked, worker)
        elif self.plain and not ends and tracked.queue is not None:
            self.held.put(anonymous_key(tracked.queue), tracked)
        effects = self.refill(queue, now) if queue is not None else []
        if worker is not None and not ends:
            tracked.claimed = waits
            effects += self._report_taken(tracked, worker) if waits else self.began(tracked, worker)
        if tracked.pending_outcome == CANCELLED and not ends:
            effects += self.cancellations([tracked], worker or env.ALL_WORKERS)
        return effects

    def began(self, tracked: TrackedRequest, worker: str | None) -> list[Effect]:
        tracked.claimed = False
        if worker is not None and hasattr(tracked.invocation.events, "began"):
            return [fx.RecordStart(tracked, worker)]
        return []

    def _report_taken(self, tracked: TrackedRequest, worker: str) -> list[Effect]:
        if hasattr(tracked.invocation.events, "taken"):
            return [fx.RecordClaim(tracked, worker)]
        return []

    def hold(self, tracked: TrackedRequest, worker: str, silence: float = 0.0) -> None:
        tracked.worker = worker
        self.held.put(worker, tracked)
        self.offers.watch(worker, silence)

    def holds(self, worker: str) -> bool:
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
        tracked.leave_index()
        worker = (tracked.worker or tracked.queue) if ran else None
        outcome = invocation.Outcome(value, worker or LOCAL, started, ended)
        failure = value.exception_str if isinstance(value, ft.Failure) else None
        self.ended.append(tracked.described(started, ended, failure))
        for observer in self.observers:
            observer.settled(tracked, outcome, now - tracked.born)
        effects: list[Effect] = [fx.Settle(tracked, outcome)]
        return effects + self.refill(queue, now) if queue is not None else effects

    def on_saved(self, calls: Iterable[invocation.Invocation]) -> list[Effect]:
        """Forget requests with saved outcomes, drop their rows and acknowledge their replies."""
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
        return self.timers.next()

    def on_timer(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        warned: set[str] = set()
        for kind, tracked in self.timers.due(now):
            if kind == WARN:
                if tracked.state == pr.WAITING and tracked.task_cls not in warned:
                    warned.add(tracked.task_cls)  # Thousands of requests may wait for one reason.
                    LOG.warning("%s", self._why_waiting(tracked, now))
            elif kind != TIMEOUT:
                effects += self._on_due(kind, tracked, now)
            elif tracked.request.expired_at(now):
                effects += self._check_timeout(tracked, now)
        return effects + self._recovery.ask() if self._recovery.pending_inquiries else effects

    def _on_due(self, kind: str, tracked: TrackedRequest, now: float) -> list[Effect]:
        if kind == LOOKUP:
            return self._recovery.on_lookup_due(tracked, now)
        if kind == EXPIRY:
            return self._expire(tracked, now)
        if kind == REPUBLISH:
            return self._recovery.republish(tracked, now)
        if kind == DUE:
            if tracked.index is not self.deferred:
                return []
            tracked.leave_index()
            return self.route(tracked, now)
        if tracked.index is not self.waiting or not tracked.dispatched:
            return []
        waited = now - tracked.request.since
        self.timers.set(now + max(STRAY_AFTER_SECONDS, min(60.0, waited)), STRAY, tracked)
        return [fx.Inspect(tracked)]

    def _check_timeout(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        request = tracked.request
        missed = self.offers.missed(request.since, now)
        if missed and request.timeout is not None:
            request.since += missed  # The engine received no reports in this time.
            if not request.expired_at(now):
                self.timers.set(request.since + request.timeout, TIMEOUT, tracked)
                return []
        if tracked.index is self.inherited:
            return self._recovery.on_inherited_timeout(tracked, now)
        if tracked.sent_at is not None and tracked.sent_at - request.since > STANDSTILL_SECONDS:
            remaining = tracked.sent_at + 2 * STANDSTILL_SECONDS - now
            if remaining > 0:  # The request was resent recently.
                self.timers.set(now + remaining, TIMEOUT, tracked)
                return []
        if not tracked.dispatched and tracked.state == pr.WAITING:
            return self.time_out(tracked, now)
        if tracked.index is self.backlog or (
            tracked.index is self.in_flight and self._queue_progresses(tracked, now)
        ):
            self.start_clock(tracked, now)
            return []
        return [fx.Revoke(tracked)]

    def _queue_progresses(self, tracked: TrackedRequest, now: float) -> bool:
        """Return whether a request waits only for other requests. Its timeout then restarts."""
        queue = tracked.queue
        if queue is None or not self.offers.slots(queue):
            return False
        if self.plain:  # Plain workers do not report their number of slots.
            return self.held.count(anonymous_key(queue)) > 0
        if not self.offers.free(queue):
            return True
        sent = tracked.sent_at or 0.0
        if now - sent < 2 * self.offers.period and not self.offers.rounds(queue, sent):
            return True  # The last report of free slots is older than this request.
        # A slot may be free for a moment between two tasks. Then consumption advances towards this
        # request.
        return self.in_flight.is_approached(tracked)

    def on_unsent(self, tracked: TrackedRequest, error: BaseException, now: float) -> list[Effect]:
        """Fail a request that cannot be published for a reason other than a broker failure."""
        if not tracked.live:
            return []
        return self.settle(tracked, ft.Failure.from_exception(error), now=now)

    def time_out(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.ran:
            return self.settle(tracked, tracked.loss(), now=now)
        # Without a ledger, a worker may still run a published message. If an earlier run may have
        # sent the request, its epochs are unknown. In both cases the request may have started.
        certain = not tracked.dispatched or (
            self.ledger is not None and not tracked.invocation.recovered
        )
        kind = exc.NeverStarted if certain else exc.RequestTimeout
        error = kind(self._why_waiting(tracked, now))
        return self.settle(tracked, ft.Failure.from_exception(error), now=now)

    def _why_waiting(self, tracked: TrackedRequest, now: float) -> str:
        name, waited = tracked.invocation.task.name, now - tracked.request.since
        why = _why_no_worker(self.offers, tracked.task_cls)
        if tracked.queue is not None and tracked.state == pr.PENDING:
            why = f"the workers of {tracked.queue!r} offer it, but none has started it"
        return f"task {name!r} has waited {waited:.1f} s: {why}"

    # Uncertain requests: see `recovery`.

    @property
    def is_searching(self) -> bool:
        """Whether reports of workers are urgent, because a request is searched for."""
        return bool(self._recovery.suspects)

    def expect(self, flow: str, used: Collection[str | None] | None) -> None:
        """Prepare for requests of earlier runs of a flow, which have rows in the ledgers `used`.

        None in `used` represents requests without a ledger. If `used` is None, the earlier runs
        used the present ledger.
        """
        self._recovery.expect(flow, used)

    def inherit(self, reply_to: str) -> None:
        """Take over the name of an earlier tracker, and the replies to it."""
        self._recovery.inherit(reply_to)

    def disown(self, flow: str | None = None) -> None:
        """Forget all requests (of one flow) without a result: another engine continues the flow."""
        self._recovery.disown(flow)

    def ask(self) -> list[Effect]:
        """Send the collected inquiries to workers in few messages."""
        return self._recovery.ask()

    def needs_reports(self, now: float) -> bool:
        """Return whether frequent reports of workers could show why requests wait."""
        return self._recovery.needs_reports(now)

    def on_round(self, now: float) -> list[Effect]:
        """Check requests that were sent but not started, once per round of heartbeats.

        Cost: at most O(requests in the broker).
        """
        return self._recovery.review(now)

    def on_heartbeat(self, worker: str, ids: Collection[str], now: float) -> list[Effect]:
        """Handle the list of requests that a worker runs for this engine.

        A request that is missing in two heartbeats is checked, because its reply may be lost.
        """
        return self._recovery.on_ids(worker, ids, now)

    def on_workers_lost(self, workers: Iterable[TopicWorker], now: float) -> list[Effect]:
        """Handle workers that stopped or were lost."""
        return self._recovery.on_lost(workers, now)

    def on_unrouted(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """Handle a `Dispatch` for which the broker had no queue: no worker receives the message."""
        return self._recovery.on_unrouted(tracked, epoch, now)

    def on_unconfirmed(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """Handle a `Dispatch` that the broker neither confirmed nor refused."""
        return self._recovery.on_unconfirmed(tracked, epoch, now)

    def on_row(
        self, tracked: TrackedRequest, seen: RowSnapshot, now: float, lost: str | None = None
    ) -> list[Effect]:
        """Handle the row that an `Inspect` read, with the `lost` of the `Inspect`."""
        return self._recovery.on_row(tracked, seen, now, lost)

    def on_revoked(self, tracked: TrackedRequest, revoked: bool, now: float) -> list[Effect]:
        """Handle the result of a `Revoke`: False if the row is claimed or does not exist."""
        return self._recovery.on_revoked(tracked, revoked, now)

    def on_reopened(
        self, tracked: TrackedRequest, answer: env.Envelope | None, now: float
    ) -> list[Effect]:
        """Handle the result of a `Reopen`, with the reply if the request is done."""
        return self._recovery.on_reopened(tracked, answer, now)

    def on_concluded(
        self, tracked: TrackedRequest, failure: ft.Failure, now: float
    ) -> list[Effect]:
        """Handle a successful `Conclude`: the lost worker can no longer change the result."""
        return self._recovery.on_concluded(tracked, failure, now)

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
            effects += self.cancellations(group, worker)
        return effects + self._recovery.ask()

    def _expire(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.pending_outcome is not None or tracked.state not in pr.WAITING_STATES:
            return []
        tracked.pending_outcome = EXPIRED
        return self._prevent_start(tracked, now)

    def _prevent_start(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if not tracked.dispatched:
            return self.end_unstarted(tracked, now)
        if tracked.index is self.inherited:
            return []  # A check of the request is in progress.
        if self.ledger is not None:
            return [fx.Revoke(tracked)]
        self._recovery.search(tracked, UNSENT, now)
        return []

    def end_unstarted(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        failure = tracked.loss() if tracked.ran else tracked.failure_before_start()
        return self.settle(tracked, failure, now=now)

    def cancellations(self, requests: Iterable[TrackedRequest], to: str) -> list[Effect]:
        named = [(tracked.id, tracked.number) for tracked in requests]
        return [fx.Cancel(order) for order in worker_commands.cancellations(named, to)]

    def unfinished(self, flow: str | None = None) -> list[TrackedRequest]:
        return [tracked for tracked in self.all_of(flow) if tracked.live]

    def unstarted(self, flow: str | None = None) -> list[TrackedRequest]:
        """Return the requests (of one flow, by its uuid) that no worker is known to have started.

        Dispatched requests must be revoked before they are forgotten, except inherited ones
        (`is_inherited`), which are still unchanged.
        """
        return [tracked for tracked in self.unfinished(flow) if tracked.state in pr.WAITING_STATES]

    def is_inherited(self, tracked: TrackedRequest) -> bool:
        return tracked.index is self.inherited

    def all_of(self, flow: str | None) -> Iterator[TrackedRequest]:
        requests = self.requests if flow is None else self._flows.get(flow, {})
        return iter(list(requests.values()))

    def forget(self, tracked: TrackedRequest) -> None:
        tracked.leave_index()
        tracked.queue = None
        tracked.epoch = WITHDRAWN
        tracked.invocation.ticket = None
        self._remove(tracked)
        self.timers.tidy(len(self.requests))

    def close(self, reason: str, kept_flows: Collection[str] = ()) -> list[Effect]:
        """Settle all remaining requests as failed, and all later ones."""
        self.closed = reason
        return self.abandon(reason, kept_flows=kept_flows)

    def abandon(
        self, reason: str, flow: str | None = None, kept_flows: Collection[str] = ()
    ) -> list[Effect]:
        """Settle all remaining requests (of one flow) as failed, and forget them.

        The rows of the flows in `kept_flows` are kept for the next run, because their failures may
        not be saved.
        """
        live = self.unfinished(flow)
        effects = [effect for tracked in live for effect in self.settle_abandoned(tracked, reason)]
        for tracked in live:
            if tracked.invocation.flow_uuid in kept_flows:
                self.forget(tracked)
        return effects + self.on_saved(tracked.invocation for tracked in live)

    def settle_abandoned(self, tracked: TrackedRequest, reason: str) -> list[Effect]:
        error = exc.ExecutionFailure(
            f"task {tracked.invocation.task.name!r} was abandoned in state"
            f" {tracked.state}: {reason}"
        )
        return self.settle(tracked, ft.Failure.from_exception(error), now=tracked.request.since)

    def reopen(self) -> None:
        self.closed = None
        # Their connection is closed, so they cannot be acknowledged.
        self._recovery.early_replies.clear()


def _why_no_worker(offers: ProxyWorkerFinder, task_cls: str) -> str:
    tasks, topics = offers.tasks(), offers.topics()
    if not topics:
        topic_list = ", ".join(map(repr, offers.wanted))
        where = f"on {topic_list} (other topics are ignored)" if topic_list else "on any topic"
        return f"no worker is known {where}, so none offers {task_cls}"
    return (
        f"no worker offers {task_cls}{_names.hint(task_cls, tasks)};"
        f" known topics: {_shown_names(topics)}; known tasks: {_shown_names(tasks)}"
    )


def _shown_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (", ".join(names[:_MAX_NAMED]) or "none") + more
