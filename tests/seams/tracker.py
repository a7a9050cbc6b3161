"""The requests of one engine and the workers that it has discovered, without threads, sockets or
clocks.

Methods receive events and return effects: the next actions of the engine, in order. The performer
of an effect reports its result to the method that the docstring of the effect names. Times are
those of the clock of the tracker.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.seams.server import queue_name
from wbengine._calls import invocation
from wbengine._concurrency.clocks import Clock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._discovery import finder, notify_schedule, roster
from wbengine.engines.worker_based._engine_side import rows
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import (
    options,
    recovery,
    recovery_with_ledger,
    recovery_without_ledger,
    tracker,
)
from wbengine.engines.worker_based._requests import request_state as tracked
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.types.failure import Failure

#: Maximum silence in seconds before a worker, or the owner of a row, is lost.
EXPIRY: Final = 60.0

#: Options of an executor that affect each of its requests.
OPTIONS: Final = options.NAMES


class Request:
    """One request. Two objects for the same request are equal."""

    __slots__ = ("_entry",)

    def __init__(self, entry: TrackedRequest) -> None:
        self._entry = entry

    @property
    def id(self) -> str:
        return self._entry.id

    @property
    def invocation(self) -> invocation.Invocation:
        return self._entry.invocation

    @property
    def epoch(self) -> int:
        """Return the epoch of the last copy."""
        return self._entry.epoch

    @property
    def stage(self) -> tuple[int, bool, int]:
        """Return the progress of its publication."""
        return self._entry.epoch, self._entry.opened, self._entry.publish_count

    @property
    def accepted(self) -> range:
        """Return the epochs whose replies are accepted; 0 means the replies of any run."""
        return range(self._entry.lowest_epoch, self._entry.epoch + 1)

    @property
    def queue(self) -> str | None:
        return self._entry.queue

    @property
    def place(self) -> tuple[int, int]:
        """Return the position in its queue: higher priority first, then older."""
        return self._entry.position

    @property
    def worker(self) -> str | None:
        """Return the current or last owner."""
        return self._entry.worker

    @property
    def opened(self) -> bool:
        """Return whether its row was created."""
        return self._entry.opened

    @property
    def began(self) -> bool:
        """Return whether a worker reported that it runs, or it has ended."""
        return self._entry.state not in pr.WAITING_STATES

    @property
    def over(self) -> bool:
        """Return whether it has its final result."""
        return self._entry.state in pr.STOP_STATES and self._entry.index is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self._entry is other._entry

    def __hash__(self) -> int:
        return hash(self._entry)

    def __repr__(self) -> str:
        return repr(self._entry)

    def described(self) -> str:
        entry = self._entry
        return (
            f"{entry} epoch {entry.epoch} doubts {entry.lookups}"
            f" dispatched {entry.dispatched} queue {entry.queue} worker {entry.worker}"
        )


# Effects.


@dataclass(slots=True)
class Publish:
    """Publish a message: if `publishing` is true, create its row (`open`) and check `publishing`
    again.

    Report to `unrouted` if the broker had no queue for it. Without a ledger, report to
    `unconfirmed` if the result of the publication is unknown.
    """

    request: Request
    epoch: int
    message: env.Envelope


@dataclass(slots=True)
class Settle:
    """Pass the result to the submitter."""

    request: Request
    outcome: invocation.Outcome

    def deliver(self) -> None:
        self.request._entry.done(self.request.invocation, self.outcome)


@dataclass(slots=True)
class NotifyEvent:
    """Pass on an event of a task."""

    request: Request
    event: str
    details: dict[str, Any]


@dataclass(slots=True)
class Withdraw:
    """Prevent a request from being claimed: `revoke`, then `revoked`."""

    request: Request


@dataclass(slots=True)
class LookUp:
    """Read the row: `look`, then `found`. `lost`: the lost worker that is the reason."""

    request: Request
    lost: str | None


@dataclass(slots=True)
class TakeBack:
    """Take a request from its lost owner: `take_back`."""

    request: Request
    epoch: int


@dataclass(slots=True)
class Conclude:
    """End a request in place of its lost owner: `conclude`."""

    request: Request
    holder: str
    failure: Failure


@dataclass(slots=True)
class Ask:
    """Publish a question about these requests."""

    message: env.Envelope
    asked: list[str]


#: Effects without an adapter: acknowledge a message; delete a row whose result is saved;
#: dead-letter a request; publish a cancellation of requests.
Acknowledge, Drop, DeadLetter, Cancel = fx.Acknowledge, fx.Drop, fx.MoveToDeadLetters, fx.Cancel

Effect = (
    Publish | Settle | NotifyEvent | Acknowledge | Withdraw | LookUp | TakeBack | Conclude
    | DeadLetter | Ask | Cancel | Drop
)  # fmt: skip


def _effect(effect: fx.Effect) -> Effect:
    match effect:
        case fx.Dispatch(entry, epoch, envelope):
            return Publish(Request(entry), epoch, envelope)
        case fx.Settle(entry, outcome):
            return Settle(Request(entry), outcome)
        case fx.Acknowledge() | fx.Drop() | fx.MoveToDeadLetters():
            return effect
        case fx.ForwardEvent(entry, event, details):
            return NotifyEvent(Request(entry), event, details)
        case fx.Revoke(entry):
            return Withdraw(Request(entry))
        case fx.Inspect(entry, lost):
            return LookUp(Request(entry), lost)
        case fx.Reopen(entry, epoch):
            return TakeBack(Request(entry), epoch)
        case fx.Conclude(entry, holder, failure):
            return Conclude(Request(entry), holder, failure)
        case fx.Ask(message):
            worker_commands.SCHEMAS[worker_commands.ASK].check(message.body)
            ask = worker_commands.Ask.from_message(message)
            return Ask(message, [id for id, _ in ask.requests])
        case fx.Cancel(message):
            worker_commands.SCHEMAS[worker_commands.CANCEL].check(message.body)
            return effect
    raise AssertionError(f"nobody performs {effect!r}")


def _effects(effects: Iterable[fx.Effect]) -> list[Effect]:
    return [_effect(each) for each in effects]


@dataclass(slots=True)
class Row:
    """The row of a request in the ledger.

    `taken`: it has or had an owner. `vanished`: it existed and was deleted.
    """

    taken: bool
    vanished: bool
    _seen: Any


class Tracker:
    """An engine's tracker.

    `do` receives the effects of messages from workers, `say` the messages to them. `lost` is called
    before, with the lost workers by name and queue.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        do: Callable[[list[Effect]], None],
        say: Callable[[env.Envelope], None],
        lost: Callable[[list[tuple[Any, str]]], None],
        ledger: Any = None,
        timeout: float | None,
        expiry: float = EXPIRY,
        on_worker_lost: str = options.FAIL,
        max_resends: int = 3,
        capacity: int | None = None,
        plain: bool = False,
        separate_ledger: bool = False,
    ) -> None:
        """:param separate_ledger: results are read from the ledger.
        :param capacity: maximum number of requests per queue in the broker (None: default).
        :param plain: the workers are those of TaskFlow.
        """
        self._clock = clock
        self._do, self._say, self._lost = do, say, lost
        self._ledger = ledger
        self._rows = rows.Rows(ledger, expiry) if ledger is not None else None
        self._finder = types.ProxyWorkerFinder(
            name,
            self,
            (),
            worker_expiry=expiry,
            on_change=self._on_workers,
            on_ids=lambda worker, ids: do(
                _effects(self._tracker.on_heartbeat(worker, ids, self._now))
            ),
            has_requests=lambda worker: self._tracker.holds(worker),
            clock=clock,
            interop=plain,
            queue_name=queue_name,
        )
        self._tracker = tracker.RequestTracker(
            name,
            self._finder,
            transition_timeout=timeout,
            plain=plain,
            options=options.RequestOptions(on_worker_lost=on_worker_lost, max_resends=max_resends),  # type: ignore[arg-type]
            wall=clock.time,
        )
        if ledger is not None:
            self._tracker.use_ledger(ledger.digest)
        self._tracker.separate_ledger = separate_ledger
        if capacity is not None:
            self._tracker._capacity = lambda queue: capacity  # type: ignore[method-assign, assignment]

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    def inherit(self, name: str) -> None:
        """Continue under the name of an engine that has ended."""
        self._finder.uuid = name
        self._tracker.inherit(name)

    # Requests.

    def __len__(self) -> int:
        return len(self._tracker.requests)

    def requests(self) -> list[Request]:
        return [Request(entry) for entry in self._tracker.requests.of_flow(None)]

    def request(self, id: str) -> Request | None:
        entry = self._tracker.requests.get(id)
        return Request(entry) if entry is not None else None

    def expect(self, flow: str, ledgers: Collection[str | None] | None) -> None:
        """Expect requests of earlier runs of a flow in these ledgers (None: the run has ended)."""
        if ledgers is None:
            self._tracker.end_run(flow)
            return
        is_elsewhere = any(ledger != self._tracker.ledger for ledger in ledgers)
        missing_row_reason = "an earlier run used another ledger" if is_elsewhere else ""
        self._tracker.expect(flow, missing_row_reason if ledgers else None)

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> list[Effect]:
        """Submit a request. Call `ask` after the last one that an earlier run possibly sent."""
        return _effects(self._tracker.submit(call, done, self._now))

    def ask(self) -> list[Effect]:
        return _effects(self._tracker.ask())

    def cancel(self, call: invocation.Invocation) -> list[Effect]:
        return _effects(self._tracker.cancel([call], self._now))

    def saved(self, calls: Iterable[invocation.Invocation]) -> list[Effect]:
        """Record that the results are in the store."""
        return _effects(self._tracker.on_saved(calls))

    def disown(self, flow: str) -> None:
        """Forget the requests of a flow that another engine continues."""
        self._tracker.disown(flow)

    def unstarted(self) -> list[Request]:
        """Return the requests that no worker has started, except those of earlier runs."""
        unstarted = self._tracker.requests.unstarted()
        return [Request(each) for each in unstarted if not self._tracker.is_inherited(each)]

    def give_back(self, request: Request, *, ours: bool) -> bool:
        """Forget a request that no worker can start. Return False if a worker can."""
        entry = request._entry
        if entry.publish_count and not (ours and self._rows and self._rows.revoke([entry])[0]):
            return False
        self._tracker.forget(entry)
        return True

    # Publishing.

    def publishing(self, effect: Publish) -> bool:
        """Return whether the request must still be published. If so, record the publication."""
        entry = effect.request._entry
        current = entry.live and entry.epoch == effect.epoch
        if current:
            entry.publish_count, entry.sent_at = entry.publish_count + 1, self._now
        return current

    def open(self, effect: Publish) -> None:
        """Create the row.

        :raises LedgerFailure: if the ledger is unreachable.
        """
        entry = effect.request._entry
        assert self._ledger is not None
        self._ledger.open(entry.id, effect.epoch)
        self.opened(effect)

    def opened(self, effect: Publish) -> None:
        """Record that the row was created."""
        effect.request._entry.opened = True

    def unrouted(self, effect: Publish) -> list[Effect]:
        return _effects(self._tracker.on_unrouted(effect.request._entry, effect.epoch, self._now))

    def unconfirmed(self, effect: Publish) -> list[Effect]:
        return _effects(
            self._tracker.on_unconfirmed(effect.request._entry, effect.epoch, self._now)
        )

    # Rows.

    def revoke(self, request: Request, *, ours: bool) -> bool:
        """Return whether no worker can claim the row."""
        return self._rows is None or (ours and self._rows.revoke([request._entry])[0])

    def revoked(self, request: Request, done: bool) -> list[Effect]:
        return _effects(
            self._tracker.on_event(recovery.RowRevoked(request._entry, done), self._now)
        )

    def look(self, request: Request) -> Row:
        assert self._rows is not None
        [seen] = self._rows.read([request._entry])
        vanished = seen.state is None and request._entry.opened
        taken = seen.holder is not None or seen.result is not None or vanished
        return Row(taken, vanished, seen)

    def found(self, request: Request, row: Row, lost: str | None) -> list[Effect]:
        event = recovery.RowRead(request._entry, row._seen, lost)
        return _effects(self._tracker.on_event(event, self._now))

    def take_back(self, effect: TakeBack) -> list[Effect]:
        assert self._rows is not None
        [(done, answer)] = self._rows.reopen([(effect.request._entry, effect.epoch)])
        if not done:
            return []
        event = recovery.RowReopened(effect.request._entry, effect.epoch, answer)
        return _effects(self._tracker.on_event(event, self._now))

    def conclude(self, effect: Conclude) -> list[Effect]:
        assert self._rows is not None
        entry = effect.request._entry
        if not self._rows.conclude([(entry, effect.holder, effect.failure)])[0]:
            return []
        event = recovery.RowConcluded(entry, effect.failure)
        return _effects(self._tracker.on_event(event, self._now))

    def sweep(self, request_ids: Iterable[str]) -> None:
        """Delete the rows of requests that ended."""
        if self._rows is not None:
            self._rows.sweep(request_ids)

    # Messages.

    def hear_answer(self, answer: env.Envelope, receipt: Any) -> list[Effect]:
        return _effects(self._tracker.on_reply(Reply.from_message(answer), receipt, self._now))

    def hear_worker(self, body: Any, message: Any) -> None:
        """Process a message of a worker about itself, or of this engine to itself."""
        self._finder.process_response(body, message)

    def hear_itself(self) -> None:
        self._finder.record_echo()

    def publish(self, message: Any, routing_key: str, **options: Any) -> None:
        """Send a message of the finder."""
        self._say(
            env.Envelope(
                message.TYPE,
                message.to_dict(),
                routing_key=routing_key,
                reply_to=options.get("reply_to"),
                headers=options["headers"],
            )
        )

    def _on_workers(self, gained: set[str], lost: list[types.TopicWorker]) -> None:
        # Sorted, because the order of a set differs between processes and the result must not.
        lost = sorted(lost, key=lambda worker: (str(worker.identity), worker.topic))
        if lost:
            self._lost([(worker.identity, worker.queue) for worker in lost])
        effects = self._tracker.on_workers_lost(lost, self._now)
        self._do(_effects(effects + self._tracker.on_workers_gained(sorted(gained), self._now)))

    # Time.

    def turn(self, channel: Any) -> None:
        """Record an iteration of the engine's loop, which listens on `channel`."""
        if self._finder.reception.record_loop_iteration(self._now, channel):
            self._finder.record_outage(self._now)

    def round(self) -> float:
        """Search for workers, find lost ones, and review stalled requests. Return the time of the
        next
        call.
        """
        now = self._now
        self._finder.maybe_publish()
        self._finder.clean()
        self._do(_effects(self._tracker.on_round(now)))
        self._finder.schedule.needs_reports = self._tracker.needs_reports(now)
        return self._finder.next_due()

    def tick(self) -> list[Effect]:
        """Process expired timers."""
        return _effects(self._tracker.on_timer(self._now))

    def next_alarm(self) -> float | None:
        return self._tracker.next_timer()

    # State.

    @property
    def ignored(self) -> Counter[str]:
        """Return the number of replies without effect, by reason."""
        return self._tracker.ignored

    def knows(self, worker: str) -> bool:
        return worker in self._finder._roster.identities

    def workers_of(self, queue: str) -> list[Any] | None:
        """Return the names of the workers of a queue, or None if the queue is unknown."""
        known = self._finder._roster.queues.get(queue)
        return None if known is None else [each.identity for each in known.members.values()]

    def inconsistent_requests(self) -> list[Request]:
        """Return requests with inconsistent state.

        These are open requests in no index and without a lookup, and completed ones that still
        wait.
        """
        inconsistent = []
        for entry in self._tracker.requests.of_flow(None):
            if entry.live == (entry.index is not None):
                continue
            sought = any(
                kind == tracked.LOOKUP and entry in others
                for *_, kind, others in self._tracker._timers._heap
            )
            if not (entry.live and sought):
                inconsistent.append(Request(entry))
        return inconsistent

    def leftovers(self) -> str | None:
        """Return the state that remains although no request exists."""
        tracked = self._tracker
        if len(tracked.requests):
            return f"{tracked.requests.of_flow(None)}"
        indexes = (
            tracked._waiting,
            tracked._backlog,
            tracked._in_flight,
            tracked._held,
            tracked._inherited,
        )
        if (
            any(indexes)
            or tracked._backlog._heaps
            or tracked._timers
            or tracked._in_flight._reached
        ):
            return "a request in an index, or a timer"
        if tracked._asks.pending or tracked._early_replies:
            return "questions or answers of nobody"
        return None

    def count_lookups(self, made: Callable[[], dict[Any, Any]]) -> None:
        """Store workers, queues and owned requests in dicts that count their accesses."""

        class Queues(dict[str, roster.Queue]):
            def setdefault(self, name: str, queue: Any = None) -> Any:
                if name not in self:
                    queue.members, queue._idle = made(), made()
                return super().setdefault(name, queue)

        self._finder._roster._workers = made()
        self._finder._roster.queues = Queues()
        self._tracker._held._rows = made()


def seconds_between_questions(workers: int, period: float, *, hurry: bool) -> float:
    """Return the interval in which an engine with this many workers sends no discovery message."""
    pace = max(period, notify_schedule.SECONDS_PER_WORKER * workers)
    return pace if hurry else notify_schedule.RELAXED_FACTOR * pace


@contextlib.contextmanager
def limited_front_rows(length: int) -> Iterator[None]:
    """Limit the number of requests that are read at once after the loss of a worker."""
    before = recovery_with_ledger.MAX_FRONT_ROWS
    recovery_with_ledger.MAX_FRONT_ROWS = length  # type: ignore[misc]
    try:
        yield
    finally:
        recovery_with_ledger.MAX_FRONT_ROWS = before  # type: ignore[misc]


# Defects: replacements for correct code, as `(owner, name, made)`.


def _no_epoch_check(before: Any) -> Any:
    def refusal(self: Any, reply: Reply) -> Any:
        reason = before(self, reply)
        return None if reason == "old_epoch" else reason

    return refusal


def _running_after_success(before: Any) -> Any:
    def on_reply(self: Any, reply: Reply, receipt: Any, now: float, **how: Any) -> Any:
        entry = self.requests.get(reply.request_id)
        late = entry is not None and entry.state in pr.STOP_STATES
        if late and reply.state == pr.RUNNING:
            entry.current_state = pr.RUNNING
        return before(self, reply, receipt, now, **how)

    return on_reply


def _time_alone(before: Any) -> Any:
    """Requests without news are resent after a while."""

    def on_round(self: Any, now: float) -> Any:
        effects = before(self, now)
        for entry in self.requests.of_flow(None):
            late = entry.sent_at is not None and now - entry.sent_at > 10.0
            if late and entry.index is self._in_flight:
                if self.ledger is None:
                    entry.next_epoch(entry.next_number)
                effects += self._dispatch(entry, now)
        return effects

    return on_round


def _same_epoch(before: Any) -> Any:
    def next_number(self: Any) -> int:
        epoch: int = self.epoch
        return epoch

    return property(next_number)


def _once_idle(before: Any) -> Any:
    """One report of a free slot is enough."""

    def idle(self: Any, entry: Any) -> bool:
        return entry.sent_at is not None

    return idle


def _believe_lost(before: Any) -> Any:
    def on_event(self: Any, event: Any, now: float) -> Any:
        if not isinstance(event, recovery.Redelivered):
            return before(self, event, now)
        entry = event.tracked
        return [
            recovery.Hold(entry, None),
            recovery.Settle(entry, entry.loss()),
        ]

    return on_event


def _no_most(before: Any) -> Any:
    def is_final_loss(self: Any, entry: Any, now: float) -> Any:
        entry.resends = 0
        return before(self, entry, now)

    return is_final_loss


def _anything_twice(before: Any) -> Any:
    return lambda self, task: True


def _no_drop(before: Any) -> Any:
    def on_saved(self: Any, calls: Any) -> Any:
        return [each for each in before(self, calls) if not isinstance(each, fx.Drop)]

    return on_saved


def _never_interrupted(before: Any) -> Any:
    return lambda self, now: False


def _no_grace(before: Any) -> Any:
    return lambda self, now: None


def _never_asks(before: Any) -> Any:
    def take(self: Any, reply_to: str) -> Any:
        self.__init__()
        return []

    return take


def _no_refill(before: Any) -> Any:
    return lambda self, queue, now: []


def _revoke_is_enough(before: Any) -> Any:
    """A request that cannot be revoked is ended, too."""

    def on_event(self: Any, event: Any, now: float) -> Any:
        if isinstance(event, recovery.RowRevoked):
            event = recovery.RowRevoked(event.tracked, True)
        return before(self, event, now)

    return on_event


def _late_failure(before: Any) -> Any:
    """Each final reply counts, regardless of earlier ones."""

    def refusal(self: Any, reply: Reply) -> Any:
        reason = before(self, reply)
        if reason == "late" and reply.state in pr.STOP_STATES:
            self.current_state = pr.RUNNING
            return None
        return reason

    return refusal


def _looks_at_all(before: Any) -> Any:
    """A heartbeat reads all owned requests."""

    def on_heartbeat(self: Any, *arguments: Any) -> Any:
        return before(self, *arguments) if len(self._held) else []

    return on_heartbeat


DEFECTS: Final[dict[str, tuple[tuple[Any, str, Callable[[Any], Any]], ...]]] = {
    "epoch-check": ((TrackedRequest, "refusal", _no_epoch_check),),
    "running-after-success": ((tracker.RequestTracker, "on_reply", _running_after_success),),
    "time-alone": ((tracker.RequestTracker, "on_round", _time_alone),),
    "same-epoch": ((TrackedRequest, "next_number", _same_epoch),),
    "once-idle": ((recovery.Recovery, "_is_skipped_by_idle", _once_idle),),
    "believe-lost": ((recovery_without_ledger.AskRecovery, "on_event", _believe_lost),),
    "no-most": ((recovery.Recovery, "_is_final_loss", _no_most),),
    "anything-twice": ((options.RequestOptions, "repeats", _anything_twice),),
    "no-drop": ((tracker.RequestTracker, "on_saved", _no_drop),),
    "no-refill": ((tracker.RequestTracker, "_refill", _no_refill),),
    "never-asks": ((fx.Asks, "take", _never_asks),),
    "revoke-is-enough": ((tracker.RequestTracker, "on_event", _revoke_is_enough),),
    "every-end-counts": ((TrackedRequest, "refusal", _late_failure),),
    "silence-counts-always": (
        (types.ProxyWorkerFinder, "_restart_grace", _no_grace),
        (finder.Reception, "is_interrupted", _never_interrupted),
    ),
    "beats-cost-all": ((tracker.RequestTracker, "on_heartbeat", _looks_at_all),),
}
