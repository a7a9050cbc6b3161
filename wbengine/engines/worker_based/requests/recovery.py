"""Recovery of requests without recent reports, and of requests from an earlier run of their flow.

*For the present run*, a request is resent only because of evidence, never because of elapsed time
alone. The evidence is one of these facts: the broker had no queue for the message, or did not
confirm it; each worker of its queue reported a free slot twice without starting it; a worker
received it a second time; its owner is lost, or does not list it.

With a ledger, the row determines the action: an OPEN request is published again with the same
epoch, which is harmless. Without a ledger, the engine sends an *inquiry* to the workers, and
resends, with the next epoch, only a request that no worker has. If all workers are busy, it
publishes the inquiry to their queue: a reply proves that all earlier messages were consumed. A
request of a lost worker is resent only if its task may run twice, and at most `max_resends` times.

*From an earlier run*: a request that the earlier run may have sent is *inherited*. The engine
publishes it only after its row, or inquiries, show that no worker runs it or will run it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import invocation, states
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery.roster import TopicWorker, anonymous_key
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import headers as hd
from wbengine.engines.worker_based.messages import worker_commands
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.tracked import (
    ABSENT,
    CANCELLED,
    EXPIRED,
    EXPIRY,
    LOOKUP,
    LOST,
    REFUSED,
    REPUBLISH,
    TIMEOUT,
    UNSEEN,
    UNSENT,
    TrackedRequest,
)
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based.requests.tracker import RequestTracker

LOG = logging.getLogger(__name__)

#: Seconds until the first check of a request. The interval doubles each time, up to the maximum.
LOOKUP_PAUSE_SECONDS: Final = 3.0
MAX_LOOKUP_PAUSE_SECONDS: Final = 60.0

#: State of a row whose ledger could not be read.
UNKNOWN: Final = "UNKNOWN"

#: Maximum number of stored replies for requests that are not submitted yet.
MAX_EARLY_REPLIES: Final = 10_000

#: Number of rounds of heartbeats without the request that prove that no worker has it.
REQUIRED_ROUNDS: Final = 2

#: Number of heartbeat periods after which the owner of a row counts as silent.
LIVE_PERIODS: Final = 1.5

#: Seconds until a message without a queue is published again.
REPUBLISH_PAUSE_SECONDS: Final = 1.0

#: Seconds without consumption after which the requests at the front of a queue are checked.
STANDSTILL_SECONDS: Final = 5.0
#: Minimum age (at most two periods) of a request before it is suspect because later ones were
#: consumed.
PASSED_SECONDS: Final = 10.0

#: Number of unanswered inquiries to workers after which the inquiry in the queue is repeated.
MAX_UNANSWERED_INQUIRIES: Final = 3

#: Minimum interval of two heartbeats of a worker that are evaluated separately: a worker may send
#: one heartbeat for each of its topics.
MIN_HEARTBEAT_GAP_SECONDS: Final = 0.25

#: Maximum number of rows that are read at a time, from the front of a queue.
MAX_FRONT_ROWS: Final = 250


_MAX_REASON_LENGTH: Final = 500


class RowSnapshot(NamedTuple):
    """The part of a ledger row that a tracker needs.

    `state` is None if there is no row, and `UNKNOWN` if the ledger could not be read. `result` is
    the reply if the row is DONE (None: it cannot be decoded). `silence` is the number of seconds
    since the last heartbeat of the owner; `silent` is True if that is too long.
    """

    state: str | None
    holder: str | None = None
    result: env.Envelope | None = None
    epoch: int | None = None
    silent: bool = False
    silence: float | None = None


class Recovery:
    """Handles the requests of a tracker whose progress is uncertain."""

    def __init__(self, tracker: RequestTracker) -> None:
        self._tracker = tracker
        self._offers, self._options = tracker.offers, tracker.options
        self._timers = tracker.timers
        self._in_flight, self._inherited = tracker.in_flight, tracker.inherited
        # Ledgers of earlier runs, by the uuid of the flow.
        self._origins: dict[str, Collection[str | None]] = {}
        #: Whether replies may arrive before their requests are submitted.
        self.inherits = False
        self.early_replies: OrderedDict[str, tuple[env.Envelope, Any]] = OrderedDict()
        #: Without a ledger: requests for which a worker is searched.
        self.suspects: dict[str, TrackedRequest] = {}
        #: Without a ledger: requests for the next inquiry.
        self.pending_inquiries: list[TrackedRequest] = []
        # Requests for inquiries in their queues; and ids with the highest epoch of requests that no
        # worker may start any more.
        self._queue_inquiries: list[TrackedRequest] = []
        self._outdated: list[worker_commands.Named] = []
        # Time until which the engine needs frequent reports of workers.
        self._frequent_reports_until = 0.0
        # Time of the last loss of a worker, by queue.
        self._last_losses: dict[str, float] = {}
        # Workers that announced their end, latest last.
        self._ended_workers: deque[str] = deque(maxlen=1000)
        # By request id: the time since which the owner does not list the request.
        self._absent: dict[str, float] = {}

    # Requests of earlier runs.

    def expect(self, flow: str, used: Collection[str | None] | None) -> None:
        """Prepare for requests of earlier runs of a flow, which have rows in the ledgers `used`.

        None in `used` represents requests without a ledger. If `used` is None, the earlier runs
        used the present ledger.
        """
        if used is None:
            self._origins.pop(flow, None)
        else:
            self._origins[flow] = used

    def inherit(self, reply_to: str) -> None:
        """Take over the name of an earlier tracker, and the replies to it."""
        self._tracker.reply_to = reply_to
        self.inherits = True

    def recover(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Submit a request that an earlier run may have sent.

        :raises Duplicate: see `submit`.
        """
        tracked = self._tracker.admit(call, done, now)
        if self._tracker.closed is not None:
            return self._tracker.settle_abandoned(tracked, self._tracker.closed)
        if not self._origin(tracked):
            return self._tracker.keep_times(tracked, now) or self._tracker.route(tracked, now)
        # An earlier run has failed each request whose times are not valid.
        with contextlib.suppress(TypeError, ValueError):
            self._tracker.read_times(tracked, now)
        if self._tracker.plain:  # Plain workers reply neither to inquiries nor to this engine.
            if self._options.repeats(call.task):
                return self._tracker.route(tracked, now)
            return self._tracker.settle(tracked, tracked.loss(), now=now)
        tracked.dispatched = True
        self._inherited.put(tracked.task_cls, tracked)
        if self._tracker.ledger is not None:
            return self._inspect(tracked, now)
        self.schedule_lookup(tracked, now)
        tracked.lowest_epoch = 0
        if tracked.id in self.early_replies:
            return self.process_early_reply(tracked, now)
        self.pending_inquiries.append(tracked)
        return []

    def _origin(self, tracked: TrackedRequest) -> Collection[str | None]:
        return self._origins.get(tracked.invocation.flow_uuid, (self._tracker.ledger,))

    def _start_final_timeout(self, tracked: TrackedRequest, now: float) -> None:
        # Set a timeout even if `timeout` is None: no queue or worker may contain this request.
        timeout = (
            self._tracker.timeout
            if self._tracker.timeout is not None
            else float(pr.REQUEST_TIMEOUT)
        )
        tracked.request.timeout, tracked.request.since = timeout, now
        self._timers.set(now + timeout, TIMEOUT, tracked)

    def on_inherited_timeout(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        queue = self._offers.queue_for(tracked.task_cls, self._tracker.load)
        if queue is not None and self._offers.slots(queue) and not self._offers.free(queue):
            # The workers are busy, and may not have received the request yet.
            self._start_final_timeout(tracked, now)
            return []
        return self.lose(tracked, now)

    def process_early_reply(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        answer, receipt = self.early_replies.pop(tracked.id)
        if self._tracker.ledger is None:  # Any result of this attempt is valid.
            tracked.adopt(answer.number(hd.WBE_EPOCH, tracked.epoch))
        return self._tracker.on_reply(answer, receipt, now)

    def keep_early_reply(self, answer: env.Envelope, receipt: Any) -> list[Effect]:
        if answer.correlation_id in self.early_replies:
            return [fx.Acknowledge(receipt)]
        self.early_replies[answer.correlation_id or ""] = answer, receipt
        if len(self.early_replies) > MAX_EARLY_REPLIES:
            return [fx.Acknowledge(self.early_replies.popitem(last=False)[1][1])]
        return []

    # Checks.

    def schedule_lookup(self, tracked: TrackedRequest, now: float) -> None:
        pause = min(MAX_LOOKUP_PAUSE_SECONDS, LOOKUP_PAUSE_SECONDS * 2 ** min(tracked.lookups, 10))
        tracked.lookups += 1
        self._frequent_reports_until = max(
            self._frequent_reports_until, now + 2 * MAX_LOOKUP_PAUSE_SECONDS
        )
        self._timers.set(now + pause, LOOKUP, tracked)

    def _inspect(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        self.schedule_lookup(tracked, now)
        return [fx.Inspect(tracked)]

    def on_lookup_due(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if not tracked.lookups:
            return []
        if self._tracker.ledger is not None:
            return self._inspect(tracked, now)
        if tracked.index is not self._inherited:
            return self._continue_search(tracked, now)
        if tracked.pending_outcome is not None or self._options.repeats(tracked.invocation.task):
            return self.send(tracked, now)
        if tracked.state == pr.WAITING:
            # The request may wait in a queue of the broker without any limit.
            tracked.request.transition(pr.PENDING)
            self._start_final_timeout(tracked, now)
        return self._continue_search(tracked, now)

    def _on_unknown_row(self, tracked: TrackedRequest, now: float, lost: str | None) -> None:
        if tracked.lookups:
            return  # The next check is already scheduled.
        if tracked.state == pr.RUNNING or tracked.pending_outcome is not None or lost is not None:
            self.schedule_lookup(tracked, now)
        elif tracked.request.expired_at(now):
            self._tracker.start_clock(tracked, now)

    def ask(self) -> list[Effect]:
        """Send the collected inquiries in few messages."""
        unlined, self.pending_inquiries = self.pending_inquiries, []
        searched = [tracked for tracked in unlined if tracked.live and tracked.lookups]
        effects = self.inquiries(searched, env.ALL_WORKERS)
        if self._outdated:
            outdated, self._outdated = self._outdated, []
            effects += map(fx.Cancel, worker_commands.cancellations(outdated, env.ALL_WORKERS))
        if self._queue_inquiries:
            unlined, self._queue_inquiries = self._queue_inquiries, []
            effects += self._inquire_queues(unlined)
        return effects

    def _inquire_queues(self, found: Iterable[TrackedRequest]) -> list[Effect]:
        by_queue: dict[tuple[str, int], list[TrackedRequest]] = {}
        for tracked in found:
            queue = tracked.queue
            if not tracked.live or not tracked.lookups or tracked.suspect not in (UNSENT, UNSEEN):
                continue
            if queue is not None and self._offers.uses_extended_protocol(queue):
                priority = min(9, max(0, tracked.invocation.priority))
                by_queue.setdefault((queue, priority), []).append(tracked)
        effects: list[Effect] = []
        for (queue, priority), found in by_queue.items():
            named = [(tracked.id, tracked.number) for tracked in found]
            for inquiry in worker_commands.inquiries(named, queue, self._tracker.reply_to):
                prioritized = dataclasses.replace(inquiry, priority=priority, persistent=True)
                effects.append(fx.Inquire(prioritized))
        return effects

    def inquiries(self, requests: Iterable[TrackedRequest], to: str) -> list[Effect]:
        named = [(tracked.id, tracked.number) for tracked in requests]
        return [
            fx.Inquire(inquiry)
            for inquiry in worker_commands.inquiries(named, to, self._tracker.reply_to)
        ]

    def search(self, tracked: TrackedRequest, why: str, now: float) -> None:
        """Search for a worker that has the request; call `ask` at the end of a batch."""
        if tracked.suspect != LOST or not tracked.lookups:
            tracked.suspect = why
        self.suspects[tracked.id] = tracked
        if not tracked.lookups:
            tracked.search_started_at = now
            self.schedule_lookup(tracked, now)
        self.pending_inquiries.append(tracked)
        if tracked.pending_outcome is None and not self._is_skipped_by_idle(tracked):
            self._queue_inquiries.append(tracked)

    def _continue_search(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        self.schedule_lookup(tracked, now)
        effects: list[Effect] = []
        if tracked.pending_outcome == CANCELLED:
            effects = self._tracker.cancellations([tracked], env.ALL_WORKERS)
        if tracked.state == pr.RUNNING and tracked.worker is not None:
            return effects + self.inquiries([tracked], tracked.worker)
        self.pending_inquiries.append(tracked)
        if tracked.lookups > MAX_UNANSWERED_INQUIRIES:
            self._queue_inquiries.append(tracked)
        return effects

    def _review_suspect(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if not tracked.live or not tracked.lookups or tracked.suspect is None:
            self.suspects.pop(tracked.id, None)
            return []
        if self._offers.missed(tracked.search_started_at, now):
            tracked.search_started_at = (
                now  # The engine received no reports in this time: inquire again.
            )
            self.pending_inquiries.append(tracked)
            return []
        if tracked.index is self._inherited and self._may_not_have_reported(tracked, now):
            return []
        return self._on_not_found(tracked, now) if self._is_missing(tracked) else []

    def _may_not_have_reported(self, tracked: TrackedRequest, now: float) -> bool:
        """Return whether a live worker that has the request may not have reported it yet."""
        listening_seconds = now - tracked.born - self._offers.missed(tracked.born, now)
        return listening_seconds <= self._offers.patience

    def _is_missing(self, tracked: TrackedRequest) -> bool:
        queue = tracked.queue
        if queue is None or not self._offers.slots(queue):
            # Without workers, a message is certainly consumed only if a worker was lost with it.
            return tracked.lookups >= REQUIRED_ROUNDS and (
                tracked.suspect == LOST or tracked.pending_outcome is not None
            )
        if not self._offers.uses_extended_protocol(queue):
            return False
        if tracked.suspect in (LOST, ABSENT):
            return self._offers.rounds(queue, tracked.search_started_at) >= REQUIRED_ROUNDS
        return self._offers.idle_rounds(queue, tracked.search_started_at) >= REQUIRED_ROUNDS

    def _on_not_found(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        self.suspects.pop(tracked.id, None)
        tracked.lookups, why = 0, tracked.suspect
        if tracked.pending_outcome is not None and tracked.state in pr.WAITING_STATES:
            return self._tracker.end_unstarted(tracked, now)
        # This engine does not know which workers were lost before it started.
        if tracked.index is self._inherited:
            self._mark_outdated(tracked)
            return self.lose(tracked, now)
        since = tracked.sent_at or tracked.born
        no_worker_lost = (
            not tracked.possibly_lost
            and self._last_losses.get(tracked.queue or "", -math.inf) <= since
        )
        if why == LOST:
            # The broker redelivers a message after an outage or the loss of a worker. After an
            # outage, no worker has started the request.
            untaken = no_worker_lost and not tracked.ran and self._offers.missed(since, now) > 0
            return self.send(tracked, now) if untaken else self.lose(tracked, now)
        if no_worker_lost:
            self._mark_outdated(tracked)
            return self.send(tracked, now)
        # A worker that was lost after publishing may have had the request.
        return self.lose(tracked, now)

    def _mark_outdated(self, tracked: TrackedRequest) -> None:
        """Tell live workers to drop a message that was not found, if it arrives late."""
        if not self._options.repeats(tracked.invocation.task):
            self._outdated.append((tracked.id, tracked.next_number - 1))

    def on_redelivered(
        self, tracked: TrackedRequest, answer: env.Envelope, now: float
    ) -> list[Effect]:
        """Handle a redelivered message whose first receiver may be running the request."""
        if self._tracker.ledger is not None:
            return [fx.Inspect(tracked)] if tracked.lookups else self._inspect(tracked, now)
        waits = tracked.state in pr.WAITING_STATES and tracked.index is not self._inherited
        if waits and answer.number(hd.WBE_EPOCH, tracked.epoch) < tracked.epoch:
            return []  # A message of an earlier run.
        self.search(tracked, LOST, now)
        if tracked.state == pr.RUNNING and tracked.worker is not None:
            self.pending_inquiries.remove(tracked)
            return self.inquiries([tracked], tracked.worker) + self.ask()
        return self.ask()

    def on_report(self, tracked: TrackedRequest, answer: env.Envelope, now: float) -> list[Effect]:
        """Handle a report of a worker about whether it has a request of this engine.

        Number 0 marks a report without an inquiry: another worker has claimed the request, or its
        replies have another address.
        """
        number, worker = answer.number(hd.WBE_ASK), answer.text(hd.WBE_WORKER)
        if answer.body["state"] == pr.RUNNING:
            if number != tracked.number or not tracked.is_current_reply(answer):
                return []
            tracked.lookups = 0
            if tracked.claimed and hd.WBE_STARTED in answer.headers:
                return self._tracker.began(tracked, worker)
            return []
        if number and number != tracked.number:
            return []
        if self._tracker.ledger is None:
            return self._on_denied(tracked, worker, now) if number else []
        if number:
            tracked.denied = worker == tracked.worker
            return [fx.Inspect(tracked)] if tracked.lookups and tracked.denied else []
        if tracked.state == pr.RUNNING or tracked.lookups:
            return []
        return self._inspect(tracked, now)

    def _on_denied(self, tracked: TrackedRequest, worker: str | None, now: float) -> list[Effect]:
        """Handle the report of a worker that does not have the request (no ledger)."""
        if not tracked.lookups or worker is None:
            return []
        if tracked.worker is None and tracked.state in pr.WAITING_STATES:
            return self._on_queue_passed(tracked, now)
        if worker != tracked.worker:
            return []
        return self._on_not_found(tracked, now) + self.ask()

    def _on_queue_passed(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Inquire again: a reply proves that all messages before the inquiry were consumed."""
        if tracked.suspect == UNSENT:
            tracked.suspect = UNSEEN
            self._queue_inquiries.append(tracked)
        elif tracked.suspect == UNSEEN:
            tracked.suspect, tracked.search_started_at = ABSENT, now
            self.pending_inquiries.append(tracked)
        return self.ask()

    # Rounds of heartbeats.

    def review(self, now: float) -> list[Effect]:
        """Check requests that were sent but not started, once per round of heartbeats.

        Cost: at most O(requests in the broker).
        """
        effects: list[Effect] = []
        if self._tracker.ledger is None:
            self._search_inherited(now)
        for tracked in list(self.suspects.values()):
            effects += self._review_suspect(tracked, now)
        for queue in self._in_flight.names():
            effects += self._review_queue(queue, now)
        for queue in self._tracker.backlog.names():
            # Earlier requests of the queue may have been removed.
            effects += self._tracker.refill(queue, now)
        return effects + self.ask()

    def _search_inherited(self, now: float) -> None:
        for task_cls in self._inherited.names():
            queues = self._offers.queues(task_cls)
            if len(queues) != 1:
                continue
            for tracked in self._inherited.each(task_cls):
                if tracked.suspect is not None or self._options.repeats(tracked.invocation.task):
                    continue
                if self._offers.rounds(queues[0], tracked.search_started_at):
                    tracked.queue = queues[0]
                    self.search(tracked, UNSENT, now)

    def _review_queue(self, queue: str, now: float) -> list[Effect]:
        suspects: dict[str, TrackedRequest] = {}
        for tracked in self._in_flight.each(queue):
            if tracked.sent_at is None or tracked.lookups:
                continue
            if not self._is_skipped_by_idle(tracked):
                break  # Then idle workers have not skipped the later requests either.
            if self._tracker.ledger is None or self._may_repeat(tracked, now):
                suspects[tracked.id] = tracked
        if self._tracker.ledger is None:
            for tracked in suspects.values():
                self.search(tracked, UNSENT, now)
            return []
        for tracked in self._in_flight.passed_since(queue, now - 2 * PASSED_SECONDS):
            passed = not tracked.lookups and self._is_passed(tracked, now)
            if passed and self._may_repeat(tracked, now):
                suspects[tracked.id] = tracked
        if self._is_stalled(queue, now):
            # A worker may have died immediately after a claim. The check finds the owner, and the
            # engine then watches it.
            for tracked in self._in_flight.get(
                queue, min(MAX_FRONT_ROWS, self._offers.free(queue))
            ):
                if tracked.sent_at is not None and not tracked.lookups:
                    suspects[tracked.id] = tracked
        return [fx.Inspect(tracked) for tracked in suspects.values()]

    def _is_passed(self, tracked: TrackedRequest, now: float) -> bool:
        sent_at, min_age = tracked.sent_at, min(PASSED_SECONDS, 2 * self._offers.period)
        return (
            sent_at is not None and now - sent_at > min_age and self._in_flight.is_passed(tracked)
        )

    def _is_skipped_by_idle(self, tracked: TrackedRequest) -> bool:
        return (
            tracked.sent_at is not None
            and tracked.queue is not None
            and self._offers.idle_rounds(tracked.queue, tracked.sent_at) >= REQUIRED_ROUNDS
        )

    def _may_repeat(self, tracked: TrackedRequest, now: float) -> bool:
        """Return whether another copy may be published now. Limits the rate of copies."""
        pause = (
            LOOKUP_PAUSE_SECONDS * 2 ** min(tracked.publish_count, 10)
            if tracked.publish_count > 1
            else 0.0
        )
        return now - (tracked.sent_at or -math.inf) >= min(MAX_LOOKUP_PAUSE_SECONDS, pause)

    def needs_reports(self, now: float) -> bool:
        """Return whether frequent reports of workers could show why requests wait."""
        if now < self._frequent_reports_until or self._tracker.waiting:
            return True
        return any(self._is_stalled(queue, now) for queue in self._in_flight.names())

    def _is_stalled(self, queue: str, now: float) -> bool:
        return (
            now - self._in_flight.last_consumed_at(queue) > STANDSTILL_SECONDS
            and (oldest := self._in_flight.first(queue)) is not None
            and now - oldest.request.since > STANDSTILL_SECONDS
        )

    # Rows.

    def on_row(
        self, tracked: TrackedRequest, seen: RowSnapshot, now: float, lost: str | None = None
    ) -> list[Effect]:
        """Handle the row that an `Inspect` read, with the `lost` of the `Inspect`."""
        if not tracked.live:
            return []
        state, holder = seen.state, seen.holder
        if state == ledgers.ROW_DONE:
            if seen.result is None:  # The result cannot be decoded.
                return self._tracker.settle(tracked, tracked.loss(), now=now)
            if tracked.lookups:
                tracked.adopt(seen.result.number(hd.WBE_EPOCH, tracked.epoch))
            _, receipt = self.early_replies.pop(tracked.id, (None, None))
            return self._tracker.on_reply(seen.result, receipt, now, stored=True)
        if state == ledgers.ROW_CLAIMED and tracked.refused is not None:
            tracked.refused = None  # The worker that refused the request does not own the row.
            if tracked.pending_outcome == REFUSED:
                tracked.pending_outcome = None
        if state == ledgers.ROW_CLAIMED and holder is not None:
            is_lost = holder in (lost, tracked.lost) and not self._is_alive(holder, seen.silence)
            if tracked.lookups:
                return self._on_owner(tracked, holder, seen.epoch, seen.silent or is_lost, now)
            if is_lost and holder == lost:
                return self._lose_claimed(tracked, holder, now)
            effects = self._tracker.started(tracked, holder, now, waits=True)
            if tracked.worker != holder or seen.silence:
                self._tracker.hold(tracked, holder, seen.silence or 0.0)
            return effects
        if state == UNKNOWN:
            self._on_unknown_row(tracked, now, lost)
            return []
        if tracked.index is self._inherited:
            if state == ledgers.ROW_OPEN:
                # With a higher epoch, the row belongs to another engine.
                later = seen.epoch is not None and seen.epoch > tracked.number
                return [] if later else [fx.Revoke(tracked)]
            return self._on_missing_row(tracked, now)
        if tracked.state == pr.RUNNING:
            # The row was claimed earlier, but is not claimed now.
            if not (tracked.lookups or tracked.worker == lost):
                return []
            if state == ledgers.ROW_OPEN and seen.epoch == tracked.epoch and tracked.claimed:
                return self._send_unstarted(tracked, now)
            return self.lose(tracked, now, rowless=state is None)
        tracked.lookups = 0
        return self._on_unclaimed(tracked, seen, now, lost)

    def _on_unclaimed(
        self, tracked: TrackedRequest, seen: RowSnapshot, now: float, lost: str | None
    ) -> list[Effect]:
        """Handle a row without an owner: it is OPEN, not created yet, or lost."""
        if seen.state is None and tracked.opened:
            # The lost row may have had an owner.
            return self._lose_claimed(tracked, lost, now, rowless=True)
        if tracked.refused is not None and tracked.pending_outcome is None:
            tracked.pending_outcome = REFUSED
        if tracked.pending_outcome is not None:
            is_own_row = seen.epoch is None or seen.epoch <= tracked.number
            if seen.state is None:
                return self._tracker.end_unstarted(tracked, now)
            return [fx.Revoke(tracked)] if is_own_row else []
        if tracked.index is self._in_flight and tracked.queue is not None:
            if self._offers.slots(tracked.queue) == 0:
                return self._reroute(tracked, now)
            passed = self._is_skipped_by_idle(tracked) or self._is_passed(tracked, now)
            if seen.state is not None and passed and self._may_repeat(tracked, now):
                return self._tracker.dispatch(tracked, now)
        if tracked.request.expired_at(now):
            # The request is not published yet, or a worker can still receive it.
            self._tracker.start_clock(tracked, now)
        return []

    def _on_owner(
        self, tracked: TrackedRequest, holder: str, epoch: int | None, dead: bool, now: float
    ) -> list[Effect]:
        """Handle a checked request that has an owner: inquire, or treat the owner as lost."""
        previous_worker = tracked.worker
        tracked.adopt(epoch if epoch is not None else tracked.epoch)
        tracked.opened = True
        effects = self._tracker.started(tracked, holder, now, waits=True)
        if tracked.worker != holder:
            self._tracker.hold(tracked, holder)
        if tracked.id in self.early_replies:
            effects += self.process_early_reply(tracked, now)
            if not tracked.live:
                return effects
        # The owner does not have the request, and would have stored its result before this report.
        if dead or (tracked.denied and previous_worker == holder):
            return effects + self.lose(tracked, now, has_row=True)
        tracked.denied = False
        return effects + self.inquiries([tracked], holder)

    def _on_missing_row(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Handle the missing row of an inherited request.

        A row exists from before the request is published until its result is saved. So the request
        was not sent, unless an earlier run used another ledger.
        """
        elsewhere = any(used != self._tracker.ledger for used in self._origin(tracked))
        if elsewhere and not self._options.repeats(tracked.invocation.task):
            return self._tracker.settle(tracked, tracked.loss(), now=now)
        return self.send(tracked, now)

    def on_revoked(self, tracked: TrackedRequest, revoked: bool, now: float) -> list[Effect]:
        """Handle the result of a `Revoke`: False if the row is claimed or does not exist."""
        if not tracked.live or tracked.state == pr.RUNNING:
            return []
        if not revoked:
            return [fx.Inspect(tracked)]
        if tracked.pending_outcome is not None:
            return self._tracker.end_unstarted(tracked, now)
        return (
            self.send(tracked, now)
            if tracked.index is self._inherited
            else self._tracker.time_out(tracked, now)
        )

    def on_reopened(
        self, tracked: TrackedRequest, answer: env.Envelope | None, now: float
    ) -> list[Effect]:
        """Handle the result of a `Reopen`, with the reply if the request is done."""
        if not tracked.live or tracked.state != pr.RUNNING:
            return []
        if answer is not None:
            return self.on_row(tracked, RowSnapshot(ledgers.ROW_DONE, result=answer), now)
        tracked.resends += 1
        return self.send(tracked, now, lost=True)

    def on_concluded(
        self, tracked: TrackedRequest, failure: ft.Failure, now: float
    ) -> list[Effect]:
        """Handle a successful `Conclude`: the lost worker can no longer change the result."""
        if not tracked.live or tracked.state != pr.RUNNING:
            return []
        return self._settle_lost(tracked, failure, now)

    # Results of publishing.

    def on_unrouted(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """Handle a `Dispatch` for which the broker had no queue: no worker receives the message."""
        if tracked.live and tracked.epoch == epoch and tracked.index is self._in_flight:
            tracked.sent_at = None
            self._timers.set(now + REPUBLISH_PAUSE_SECONDS, REPUBLISH, tracked)
        return []

    def republish(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        if tracked.index is not self._in_flight or tracked.sent_at is not None:
            return []
        assert tracked.queue is not None
        if self._offers.slots(tracked.queue):
            return self._tracker.dispatch(tracked, now)
        # `on_lost` routes it again.
        self._timers.set(now + REPUBLISH_PAUSE_SECONDS, REPUBLISH, tracked)
        return []

    def on_unconfirmed(self, tracked: TrackedRequest, epoch: int, now: float) -> list[Effect]:
        """Handle a `Dispatch` that the broker neither confirmed nor refused."""
        if not tracked.live or tracked.epoch != epoch or tracked.index is not self._in_flight:
            return []
        if self._tracker.ledger is not None:  # Only one of the copies can claim the row.
            return self._tracker.dispatch(tracked, now)
        self.search(tracked, UNSENT, now)
        return self.ask()

    # Workers.

    def on_ids(self, worker: str, ids: Collection[str], now: float) -> list[Effect]:
        """Handle the list of requests that a worker runs for this engine.

        A request that is missing in two heartbeats is checked, because its reply may be lost.
        """
        effects: list[Effect] = []
        for tracked in self._tracker.held.get(worker):
            if tracked.id in ids:
                self._absent.pop(tracked.id, None)
                if tracked.pending_outcome == CANCELLED:
                    effects += self._tracker.cancellations([tracked], worker)
                continue
            absent_since = self._absent.setdefault(tracked.id, now)
            if now - absent_since >= MIN_HEARTBEAT_GAP_SECONDS and not tracked.lookups:
                del self._absent[tracked.id]
                effects += self._on_absent(tracked, worker, now)
        if len(self._absent) > 2 * len(self._tracker):
            self._absent.clear()
        return effects

    def _on_absent(self, tracked: TrackedRequest, worker: str, now: float) -> list[Effect]:
        if self._tracker.ledger is not None:
            return self._inspect(tracked, now)
        self.search(tracked, LOST, now)
        self.pending_inquiries.remove(tracked)
        return self.inquiries([tracked], worker)

    def on_lost(self, workers: Iterable[TopicWorker], now: float) -> list[Effect]:
        """Handle workers that stopped or were lost.

        A request that such a worker claimed and did not complete is lost: it may have taken effect.
        Unclaimed requests remain for the other workers of the queue, or are routed again if there
        are none. With a ledger, the rows distinguish these cases. Without a ledger, a request for
        another queue gets another epoch.
        """
        effects: list[Effect] = []
        has_ledger = self._tracker.ledger is not None
        for worker in workers:
            name = worker.identity if isinstance(worker.identity, str) else None
            claimed_requests = self._tracker.held.get(name or anonymous_key(worker.queue))
            is_unserved = self._offers.slots(worker.queue) == 0
            self._last_losses[worker.queue] = now
            if name is not None and worker.announced_end:
                self._ended_workers.append(name)
            for tracked in claimed_requests:
                tracked.lost = name
                effects += [fx.Inspect(tracked, name)] if has_ledger else self.lose(tracked, now)
            if is_unserved:
                while waiting := self._tracker.backlog.first(worker.queue):
                    effects += self._reroute(waiting, now)
            if is_unserved or has_ledger:
                for tracked in self._in_flight.get(
                    worker.queue, None if is_unserved else MAX_FRONT_ROWS
                ):
                    effects += (
                        [fx.Inspect(tracked, name)] if has_ledger else self._reroute(tracked, now)
                    )
        return effects

    def _is_alive(self, holder: str, silence: float | None) -> bool:
        """Return whether a worker that was considered lost has a recent heartbeat."""
        if silence is None or holder in self._ended_workers:
            return False
        return silence < LIVE_PERIODS * self._offers.period

    # Resending.

    def _reroute(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        # Not `transition`, which does not permit PENDING to WAITING.
        tracked.request.current_state = pr.WAITING
        return self._route_from_queue(tracked, now)

    def _send_unstarted(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        """Route a request again after its owner released the claim."""
        tracked.lookups = 0
        tracked.worker = tracked.lost = None
        tracked.denied = tracked.claimed = False
        return self._reroute(tracked, now)

    def _route_from_queue(self, tracked: TrackedRequest, now: float) -> list[Effect]:
        queue = tracked.key if tracked.index is self._in_flight else None
        tracked.leave_index()
        effects = self._tracker.route(tracked, now)
        if queue is not None and self._offers.slots(queue):
            effects += self._tracker.refill(queue, now)
        return effects

    def route_again(self, tracked: TrackedRequest, queue: str, now: float) -> list[Effect]:
        """Route a request without a ledger whose earlier message may still be consumed."""
        if queue != tracked.queue and self._tracker.plain:
            self._tracker.wait(tracked, now)  # Its worker may still reply.
            return []
        if queue != tracked.queue:
            if tracked.resends >= self._options.max_resends:
                return self._tracker.settle(tracked, tracked.loss(), now=now)
            tracked.resends += 1
            tracked.next_epoch(tracked.next_number)
            tracked.queue = None
            return _incident(tracked, states.RESENT) + self._tracker.route(tracked, now)
        tracked.search_started_at = now
        tracked.request.transition(pr.PENDING)
        self._in_flight.put(queue, tracked)
        if tracked.sent_at is not None:
            tracked.possibly_lost = (
                tracked.possibly_lost or self._last_losses.get(queue, -math.inf) > tracked.sent_at
            )
            tracked.sent_at = now  # The workers have not yet had the chance to start it.
        self._tracker.start_clock(tracked, now)
        return []

    def _lose_claimed(
        self, tracked: TrackedRequest, worker: str | None, now: float, rowless: bool = False
    ) -> list[Effect]:
        effects = self._tracker.started(tracked, None, now)
        return effects + self.lose(tracked, now, worker, rowless, has_row=not rowless)

    def lose(
        self,
        tracked: TrackedRequest,
        now: float,
        worker: str | None = None,
        rowless: bool = False,
        has_row: bool = False,
    ) -> list[Effect]:
        """Resend the request of a lost worker if that is harmless, else settle it.

        :param rowless: whether the row is lost too.
        """
        tracked.worker = worker or tracked.worker
        over = self._tracker.plain or (tracked.expires_at is not None and now >= tracked.expires_at)
        over = over or tracked.resends >= self._options.max_resends
        ends = (
            over
            or tracked.pending_outcome == CANCELLED
            or not self._options.repeats(tracked.invocation.task)
        )
        if ends and not (has_row and tracked.worker is not None):
            return self._settle_lost(tracked, tracked.loss(), now)
        if self._tracker.ledger is not None and not rowless:
            if not tracked.lookups:
                self.schedule_lookup(tracked, now)  # The ledger may be unavailable.
            if ends:
                return [fx.Conclude(tracked, tracked.worker or "", tracked.loss())]
            return [fx.Reopen(tracked, tracked.next_number)]
        tracked.resends += 1
        return self.send(tracked, now, lost=True)

    def _settle_lost(
        self, tracked: TrackedRequest, failure: ft.Failure, now: float
    ) -> list[Effect]:
        effects = _incident(tracked, states.WORKER_LOST, tracked.worker)
        if (
            tracked.resends >= self._options.max_resends
            and tracked.pending_outcome is None
            and not self._tracker.plain
            and self._options.repeats(tracked.invocation.task)
        ):
            effects += self._dead_letter(tracked, failure)
        return effects + self._tracker.settle(tracked, failure, now=now)

    def _dead_letter(self, tracked: TrackedRequest, failure: ft.Failure) -> list[Effect]:
        try:
            letter = tracked.envelope(
                self._tracker.reply_to, self._options, extended=True, ledger=self._tracker.ledger
            )
        except Exception as error:  # The arguments were changed after the request was sent.
            LOG.warning("request %s cannot be moved to the dead letters: %s", tracked.id, error)
            return []
        letter.persistent = True
        letter.headers |= {
            hd.WBE_DEAD: failure.exception_str[:_MAX_REASON_LENGTH],
            hd.WBE_QUEUE: tracked.queue or "",
            hd.WBE_TIME: self._tracker.wall(),
        }
        return [fx.MoveToDeadLetters(letter)]

    def send(self, tracked: TrackedRequest, now: float, lost: bool = False) -> list[Effect]:
        """Send a request under a new epoch, or settle it if it has an outcome or has expired.

        Before a send, the caller ensures that no worker runs an earlier copy, unless the task may
        run twice.

        :param lost: whether a lost worker had it.
        """
        if tracked.pending_outcome is not None:
            return self._tracker.end_unstarted(tracked, now)
        if tracked.expires_at is not None and now >= tracked.expires_at:
            tracked.pending_outcome = EXPIRED
            return self._tracker.end_unstarted(tracked, now)
        was_inherited = tracked.index is self._inherited
        effects: list[Effect] = []
        if lost:
            effects += _incident(tracked, states.WORKER_LOST, tracked.worker)
        if lost or not was_inherited:
            effects += _incident(tracked, states.RESENT, tracked.worker)
        tracked.worker = tracked.lost = tracked.queue = None
        tracked.denied = False
        tracked.next_epoch(tracked.next_number)
        if was_inherited and tracked.expires_at is not None:
            self._timers.set(tracked.expires_at, EXPIRY, tracked)
        if was_inherited and self._tracker.ledger is None:
            tracked.lowest_epoch = 0  # Any result of this attempt is valid.
        tracked.request.current_state = pr.WAITING
        return effects + self._route_from_queue(tracked, now)

    def disown(self, flow: str | None = None) -> None:
        """Forget all requests (of one flow) without a result: another engine continues the flow."""
        for tracked in list(self._tracker.all_of(flow)):
            self._tracker.forget(tracked)
        if flow is None:
            self.early_replies.clear()
            self._origins.clear()
        else:
            self._origins.pop(flow, None)


def _incident(tracked: TrackedRequest, event: str, worker: str | None = None) -> list[Effect]:
    if hasattr(tracked.invocation.events, "incident"):
        return [fx.RecordIncident(tracked, event, worker)]
    return []
