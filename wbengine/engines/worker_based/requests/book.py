"""Every request of an executor, from submission to its one outcome, without any I/O.

`RequestBook` takes invocations, answers, news of workers and the time; it returns *effects*: what
somebody with sockets and clocks should do next, in that order.  It owns no thread, no lock and no
clock, so that any history can be replayed against it.

The life of a request: it is WAITING while no known worker offers its task; it is PENDING from the
moment it is routed to a queue (its ledger row is opened, then its message is published) until a
worker says otherwise; then RUNNING; and it ends in exactly one outcome, whichever terminal answer
of the current epoch comes first.  Anything else that comes is counted in `ignored` and dropped.
What becomes of those whose worker or engine went away is told in `recovering`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery.offers import Offers, why_nobody
from wbengine.engines.worker_based.discovery.roster import nameless
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.entries import Entry
from wbengine.engines.worker_based.requests.reasons import (
    AGAIN,
    CANCELLED,
    DUE,
    EXPIRE,
    LAPSE,
    LOOK,
    STRAY,
    WARN,
)
from wbengine.engines.worker_based.requests.recovering import Recovering
from wbengine.engines.worker_based.requests.resending import STILL
from wbengine.engines.worker_based.requests.terms import Terms
from wbengine.types import failure as ft

__all__ = ["RequestBook"]

LOG = logging.getLogger(__name__)

#: At most this many requests of one queue are in the broker, or `PER_SLOT` for each known slot if
#: that is more; the rest wait here, by priority, where they can still change queues.
MOST_IN_BROKER: Final = 1000
PER_SLOT: Final = 8

#: After so many seconds in WAITING, the log says once what a request waits for.
WARN_AFTER: Final = 5.0


#: Seconds until what waits although a message of it is out is looked for; then twice as many.
STRAY_AFTER: Final = 10.0

#: So many requests that ended are remembered, for people.
REMEMBERED: Final = 1000


class RequestBook(Recovering):
    """All requests of one executor.  Not thread-safe: its owner holds a lock around every call.

    `wall` tells unix seconds; only `expires` and `eta` that are datetimes, and peers without a
    ledger, need it.
    """

    def __init__(
        self,
        reply_to: str,
        offers: Offers,
        *,
        transition_timeout: float | None = pr.REQUEST_TIMEOUT,
        ledger: str | None = None,
        terms: Terms = Terms(),  # noqa: B008  (frozen)
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(reply_to, offers, transition_timeout, ledger, terms, wall)
        self._entries: dict[str, Entry] = {}
        self._flows: dict[str, dict[str, Entry]] = {}
        self._order = itertools.count(1)
        #: The last that ended: `(entry's call, ...)`, see `overview`.
        self.ended: deque[tuple[Any, ...]] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return len(self._entries)

    # Submitting and routing.

    def submit(
        self, call: invocation.Invocation, done: invocation.Done, now: float
    ) -> list[Effect]:
        """Take a request on; what cannot be encoded is settled as a failure at once.

        :raises Duplicate: the same action of the same attempt of the atom is already in the book.
        """
        entry = self._admit(call, done, now)
        if self._closed is not None:
            return self._leave_undone(entry, self._closed)
        if self._early and entry.id in self._early:
            effects = self._hear_early(entry, now)  # the store did not know that it was sent
            return effects + self._route(entry, now) if entry.live else effects
        task = call.task
        if task.eta is not None or task.expires is not None:
            return self._keep_times(entry, now) or self._route(entry, now)
        return self._route(entry, now)

    def _admit(self, call: invocation.Invocation, done: invocation.Done, now: float) -> Entry:
        entry = Entry(call, done, self._timeout, now)
        if entry.id in self._entries:
            raise exc.Duplicate(f"request {entry.request!r} is already in the book")
        call.ticket = entry
        self._entries[entry.id] = entry
        flow = self._flows.get(entry.flow)
        if flow is None:
            self._flows[entry.flow] = {entry.id: entry}
        else:
            flow[entry.id] = entry
        return entry

    def _route(self, entry: Entry, now: float) -> list[Effect]:
        if entry.fate is not None or (entry.lapse is not None and now >= entry.lapse):
            if entry.dispatched:
                self._wait(entry, now)
            return self._lapse(entry, now)
        if entry.eta is not None and now < entry.eta:
            self._deferred.put("", entry)
            self._alarms.set(entry.eta, DUE, entry)
            return []
        queue = self._offers.queue_for(entry.task_cls, self._load)
        if queue is None:
            self._wait(entry, now)
            return []
        if self.ledger is None and entry.queue is not None and entry.unused > entry.epoch:
            return self._route_again(entry, queue, now)
        entry.request.transition(pr.PENDING)
        entry.queue = queue
        entry.place = (-entry.invocation.priority, next(self._order))
        if self._sent.count(queue) >= self._capacity(queue):
            self._backlog.put(queue, entry)
            return []
        return self._dispatch(entry, now)

    def _load(self, queue: str) -> int:
        return self._sent.count(queue) + self._backlog.count(queue)

    def _capacity(self, queue: str) -> int:
        served = PER_SLOT * self._offers.slots(queue)
        return served if served > MOST_IN_BROKER else MOST_IN_BROKER

    def _wait(self, entry: Entry, now: float) -> None:
        if self.ledger is not None or entry.unused <= entry.epoch:
            entry.queue = None  # else its message may wait there, and need not be sent again
        if entry.dispatched and self.ledger is not None:
            self._alarms.set(now + STRAY_AFTER, STRAY, entry)
        self._waiting.put(entry.task_cls, entry)
        self._start_clock(entry, now)
        if self._timeout is None or self._timeout > WARN_AFTER:
            self._alarms.set(now + WARN_AFTER, WARN, entry)

    def _start_clock(self, entry: Entry, now: float) -> None:
        entry.request.since = now
        if self._timeout is not None:
            self._alarms.set(now + self._timeout, EXPIRE, entry)

    def _dispatch(self, entry: Entry, now: float) -> list[Effect]:
        assert entry.queue is not None
        try:
            envelope = entry.envelope(
                self._reply_to,
                self._terms,
                ours=self._offers.speaks(entry.queue),
                ledger=self.ledger,
            )
        except Exception as error:  # whatever arguments do, nobody but their task is hurt
            return self._settle(entry, ft.Failure.from_exception(error), now=now)
        if entry.lapse is not None and self.ledger is None:
            envelope.headers[env.EXPIRES] = self._wall() + entry.lapse - now
        entry.sent_at = None  # where it was published before is of no interest any more
        again = entry.shelf is self._sent
        entry.dispatched, entry.unused = True, entry.epoch + 1
        self._sent.put(entry.queue, entry)
        if not again:  # else it is the same wait
            self._start_clock(entry, now)
        return [fx.Dispatch(entry, entry.epoch, envelope)]

    def _refill(self, queue: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._closed is None and (entry := self._backlog.first(queue)) is not None:
            if self._sent.count(queue) >= self._capacity(queue):
                break
            effects += self._dispatch(entry, now)
        return effects

    def on_gained(self, names: Iterable[str], now: float) -> list[Effect]:
        """Task classes that a worker began to offer: what waited for them is routed."""
        effects: list[Effect] = []
        for name in names:
            for entry in self._waiting.get(name):
                entry.leave()
                effects += self._route(entry, now)
        return effects

    # Answers.

    def on_response(self, answer: env.Envelope, receipt: Any, now: float) -> list[Effect]:
        """A validated RESPONSE.  Idempotent: repeats, late and foreign ones change nothing.

        The receipt of a terminal answer is acknowledged only once its outcome was `retired`.
        """
        entry = self._entries.get(answer.correlation_id or "")
        reason = entry.refusal(answer) if entry is not None else "unknown"
        if entry is None or reason is not None:
            return self._on_unfit(entry, reason or "unknown", answer, receipt, now)
        if env.WBE_LOST in answer.headers and answer.body["state"] == pr.FAILURE:
            return [*self._on_given_twice(entry, now), fx.Acknowledge(receipt)]
        ends = answer.body["state"] in pr.STOP_STATES
        effects = self._started(entry, answer.text(env.WBE_WORKER), now, ends)
        if entry.doubts and (self.ledger is None or env.WBE_ASK in answer.headers):
            entry.doubts = 0
        if ends:
            entry.receipt = receipt
            return effects + self._settle(
                entry,
                env.value_of(answer),
                started=answer.seconds(env.WBE_STARTED),
                ended=answer.seconds(env.WBE_ENDED),
                now=now,
            )
        if answer.body["state"] == pr.EVENT and entry.invocation.events is not None:
            details = env.details_of(answer)
            if details is None:
                self.ignored["unreadable"] += 1
            else:
                effects.append(fx.Tell(entry, answer.body["data"]["event_type"], details))
        effects.append(fx.Acknowledge(receipt))
        return effects

    def _on_unfit(
        self, entry: Entry | None, reason: str, answer: env.Envelope, receipt: Any, now: float
    ) -> list[Effect]:
        """An answer that settles nothing and starts nothing."""
        if entry is not None and entry.live and env.WBE_ASK in answer.headers:
            return [*self._on_told(entry, answer, now), fx.Acknowledge(receipt)]
        if entry is None and self.heir and answer.body["state"] in pr.STOP_STATES:
            return self._keep_early(answer, receipt)
        self.ignored[reason] += 1
        return [fx.Acknowledge(receipt)]

    def _started(
        self, entry: Entry, worker: str | None, now: float, ends: bool = False
    ) -> list[Effect]:
        """Somebody began it, as is heard now; `ends`: as that it is done."""
        request = entry.request
        if request.current_state == pr.RUNNING:
            return []
        if request.current_state == pr.WAITING:
            request.transition(pr.PENDING)
        request.transition(pr.RUNNING)
        entry.ran = True
        queue = entry.queue if entry.shelf is self._sent else None
        if queue is not None:
            self._sent.serve(entry, now)
        else:
            entry.leave()
        if worker is not None and ends:  # nobody holds it any more
            entry.worker = worker
            self._offers.watch(worker)
        elif worker is not None:
            self._hold(entry, worker)
        elif self.plain and not ends and entry.queue is not None:
            self._held.put(nameless(entry.queue), entry)
        effects = self._refill(queue, now) if queue is not None else []
        if worker is not None and not ends and hasattr(entry.invocation.events, "began"):
            effects.append(fx.Began(entry, worker))
        if entry.fate == CANCELLED and not ends:
            effects += self._cancels([entry], worker or env.ALL_WORKERS)
        return effects

    def _hold(self, entry: Entry, worker: str, silence: float = 0.0) -> None:
        entry.worker = worker
        self._held.put(worker, entry)
        self._offers.watch(worker, silence)

    def holds(self, worker: str) -> bool:
        """Whether a worker is known to run something of this book."""
        return self._held.count(worker) > 0

    def _settle(
        self,
        entry: Entry,
        value: Any,
        *,
        now: float,
        started: float | None = None,
        ended: float | None = None,
    ) -> list[Effect]:
        ran = entry.state == pr.RUNNING
        entry.request.transition(pr.FAILURE if isinstance(value, ft.Failure) else pr.SUCCESS)
        queue = entry.queue if entry.shelf is self._sent else None
        entry.leave()
        worker = (entry.worker or entry.queue) if ran else None
        outcome = invocation.Outcome(value, worker or invocation.LOCAL, started, ended)
        failure = value.exception_str if isinstance(value, ft.Failure) else None
        self.ended.append(entry.described(failure, started, ended))
        for onlooker in self.onlookers:
            onlooker.settled(entry, outcome, now - entry.born)
        effects: list[Effect] = [fx.Settle(entry, outcome)]
        return effects + self._refill(queue, now) if queue is not None else effects

    def retired(self, calls: Iterable[invocation.Invocation]) -> list[Effect]:
        """Outcomes were saved: forget the requests, drop their rows, acknowledge their answers."""
        effects: list[Effect] = []
        for call in calls:
            entry = call.ticket
            if not isinstance(entry, Entry) or entry.live:
                continue
            if entry.id not in self._entries:
                continue
            self._strike(entry)
            call.ticket = None
            if entry.dispatched:
                effects.append(fx.Drop(entry.id))
            if entry.receipt is not None:
                effects.append(fx.Acknowledge(entry.receipt))
                entry.receipt = None
        self._alarms.tidy(len(self._entries))
        return effects

    def _strike(self, entry: Entry) -> None:
        flow = entry.flow
        del self._entries[entry.id]
        row = self._flows[flow]
        del row[entry.id]
        if not row:
            del self._flows[flow]

    # Time.

    def next_alarm(self) -> float | None:
        """When `tick` should be called next, on the clock that is passed in as `now`."""
        return self._alarms.next()

    def tick(self, now: float) -> list[Effect]:
        """Let what is due expire.  Costs O(log n) for each alarm that is due, no more."""
        effects: list[Effect] = []
        told: set[str] = set()
        for kind, entry in self._alarms.due(now):
            if kind == WARN:
                if entry.state == pr.WAITING and entry.task_cls not in told:
                    told.add(entry.task_cls)  # thousands like it would say the same
                    LOG.warning("%s", self._why_waiting(entry, now))
            elif kind != EXPIRE:
                effects += self._ring(kind, entry, now)
            elif entry.request.expired_at(now):
                effects += self._expire(entry, now)
        return effects + self.ask() if self.unasked else effects

    def _ring(self, kind: str, entry: Entry, now: float) -> list[Effect]:
        if kind == LOOK:
            return self._look(entry, now)
        if kind == LAPSE:
            return self._lapse(entry, now)
        if kind == AGAIN:
            return self._try_again(entry, now)
        if kind == DUE:
            if entry.shelf is not self._deferred:
                return []
            entry.leave()
            return self._route(entry, now)
        if entry.shelf is not self._waiting or not entry.dispatched:
            return []
        waited = now - entry.request.since
        self._alarms.set(now + max(STRAY_AFTER, min(60.0, waited)), STRAY, entry)
        return [fx.Inspect(entry)]

    def _expire(self, entry: Entry, now: float) -> list[Effect]:
        request = entry.request
        missed = self._offers.missed(request.since, now)
        if missed and request.timeout is not None:
            request.since += missed  # nobody could be heard of, whoever may have been there
            if not request.expired_at(now):
                self._alarms.set(request.since + request.timeout, EXPIRE, entry)
                return []
        if entry.shelf is self._left:
            return self._give_up(entry, now)
        if entry.sent_at is not None and entry.sent_at - request.since > STILL:
            rest = entry.sent_at + 2 * STILL - now
            if rest > 0:  # it was sent again, and is on its way
                self._alarms.set(now + rest, EXPIRE, entry)
                return []
        if not entry.dispatched and entry.state == pr.WAITING:
            return self._time_out(entry, now)
        if entry.shelf is self._backlog or (entry.shelf is self._sent and self._moves(entry)):
            self._start_clock(entry, now)
            return []
        return [fx.Revoke(entry)]

    def _moves(self, entry: Entry) -> bool:
        """Whether a request waits because others are served: a busy fleet stops its clock."""
        queue = entry.queue
        if queue is None or not self._offers.slots(queue):
            return False
        if self.plain:  # of whom nobody knows how many slots they have
            return self._held.count(nameless(queue)) > 0
        if not self._offers.free(queue):
            return True
        # A slot may look free between two tasks; but then the line moves, and not past us.
        return self._sent.approaches(entry)

    def on_unsent(self, entry: Entry, error: BaseException, now: float) -> list[Effect]:
        """A `Dispatch` that can never be published, for a reason that is not the broker's."""
        if not entry.live:
            return []
        return self._settle(entry, ft.Failure.from_exception(error), now=now)

    def _time_out(self, entry: Entry, now: float) -> list[Effect]:
        if entry.ran:
            return self._settle(entry, entry.unknown(), now=now)
        # Without a ledger nobody can say that a message which is out will not be run after all; nor
        # does anybody say under which numbers an earlier run of its flow had it run.
        certain = not entry.dispatched or (
            self.ledger is not None and not entry.invocation.recovered
        )
        kind = exc.NeverStarted if certain else exc.RequestTimeout
        error = kind(self._why_waiting(entry, now))
        return self._settle(entry, ft.Failure.from_exception(error), now=now)

    def _why_waiting(self, entry: Entry, now: float) -> str:
        name, waited = entry.invocation.task.name, now - entry.request.since
        why = why_nobody(self._offers, entry.task_cls)
        if entry.queue is not None and entry.state == pr.PENDING:
            why = f"no worker started it, although those of {entry.queue!r} offer it"
        return f"task {name!r} has waited {waited:.1f} s: {why}"

    # Ending.

    def reopen(self) -> None:
        """Take requests again, after `close`."""
        self._closed = None
        self._early.clear()  # what came on another connection cannot be acknowledged any more
