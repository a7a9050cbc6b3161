"""The state of a request in its tracker, the tables and indexes of requests, and their timers."""

from __future__ import annotations

import heapq
import itertools
import math
import queue
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine import _payloads
from wbengine import exceptions as exc
from wbengine._calls import invocation, start_times
from wbengine._concurrency import time_limits
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery import snapshots
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages.request_messages import Reply, RequestMessage
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.seen_numbers import SeenNumbers
from wbengine.transports._ledger import NO_FENCE, Opening
from wbengine.types import failure as ft

# Kinds of timers.
#: The `transition_timeout` of a request expires.
TIMEOUT: Final = "timeout"
#: A request without a known worker is checked.
LOOKUP: Final = "lookup"
#: A warning about a waiting request is due.
WARN: Final = "warn"
#: A waiting request with a published message is checked.
STRAY: Final = "stray"
#: The `eta` of the request is reached.
DUE: Final = "due"
#: The `expires` of the request is reached.
EXPIRY: Final = "expiry"
#: A message for which the broker had no queue is published again.
REPUBLISH: Final = "republish"

# Outcomes of a request that turns out not to have run.
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
REFUSED: Final = "refused"
#: Only a result of an earlier run is awaited.
UNWANTED: Final = "unwanted"

# Why a request without a ledger is searched for. LOST: its worker may be lost. The others are the
# stages of the search for a lost message: asks in its queue lead from UNSENT to UNSEEN to
# ABSENT.
UNSENT: Final = "unsent"
UNSEEN: Final = "unseen"
ABSENT: Final = "absent"
LOST: Final = "lost"

_SNAPSHOT_STATES: Final[Mapping[str, snapshots.State]] = {
    pr.WAITING: snapshots.DEFERRED,
    pr.PENDING: snapshots.QUEUED,
    pr.RUNNING: snapshots.STARTED,
    pr.SUCCESS: snapshots.FINISHED,
    pr.FAILURE: snapshots.FAILED,
}

_MAX_ERROR_LENGTH: Final = 500

#: Seconds without consumption after which a queue stands still.
STANDSTILL_SECONDS: Final = 5.0

#: Sort key of a request in its queue: negative priority, then a serial number.
Position = tuple[int, int]

#: Time, number of the timer, kind, and requests.
_Timer = tuple[float, int, str, list["TrackedRequest"]]

#: Number of outdated timers above which the heap is cleaned.
_MAX_STALE_TIMERS: Final = 1000

#: Maximum number of stored replies for requests that are not submitted yet.
MAX_EARLY_REPLIES: Final = 10_000

#: Epoch of a forgotten request: no message of it is current.
WITHDRAWN: Final = -1


class TrackedRequest(pr.Request):
    """A request with the state of its tracker, in at most one `RequestIndex`, under a `key`.

    *Publishing*: `dispatched`: the request was passed to the publisher. The publisher sets
    `publish_count` (number of started attempts), `opening` (the row, if it is opened together with
    publishing), `opened` (the row exists) and `sent_at` (time of the last publishing on the
    tracker's clock).

    *Epochs*: replies are valid from `lowest_epoch` to `epoch`; no message has `unused_epoch`.

    *Owner*: `ran`: a worker had the request; `claimed`: a worker has it, but may still wait for a
    slot; `worker`: the last worker; `lost`: the worker that was lost with it; `possibly_lost`: a
    lost worker may have had it in this epoch; `resends`: number of resends after a loss.

    *Search*: `lookups`: number of checks without a known worker; `denied`: its owner reports that
    it does not have the request; `absent_since`: time since which its owner does not list it;
    `missing_row_reason`: why the ledger may lack the row of an earlier run. Without a ledger,
    `suspect` is the reason of the search and `search_started_at` its start.

    *Times*: the request may be started from `eta` until `expires_at`. `pending_outcome` applies
    once it is certain that the request does not run. `refused` is the failure that a worker
    reported although another worker may own the row. `waiters`: queues of threads that wait for the
    call of `done`, or until the request is forgotten.
    """

    __slots__ = (
        "_seen", "absent_since", "born", "claimed", "denied", "dispatched", "done", "epoch", "eta",
        "expires_at", "fence", "flow", "heard", "id", "index", "invocation", "key", "lookups",
        "lost", "lowest_epoch", "missing_row_reason", "opened", "opening", "pending_outcome",
        "position", "possibly_lost", "publish_count", "queue", "ran", "receipt", "refused",
        "resends", "search_started_at", "sent_at", "suspect", "unused_epoch", "waiters", "worker",
    )  # fmt: skip

    def __init__(
        self, call: invocation.Invocation, done: invocation.Done, timeout: float | None, now: float
    ) -> None:
        super().__init__(
            call.task,
            call.uuid,
            call.action,
            call.arguments,
            timeout,
            call.result if call.action == invocation.REVERT else pr.NO_RESULT,
            call.failures,
        )
        #: Correlation id of its messages and id of its row.
        self.id = invocation.request_id(
            call.uuid, call.action, call.attempt, call.index, call.resumed
        )
        self.invocation = call
        self.flow = call.flow_uuid
        #: The run of the flow, for the ledger.
        self.fence = NO_FENCE
        self.done = done
        self.since = self.born = now
        self.epoch = self.lowest_epoch = self.unused_epoch = call.epoch
        self.lookups = self.resends = self.publish_count = 0
        self.search_started_at = now
        self.denied = self.dispatched = self.opened = self.heard = False
        self.ran = call.lost
        self.possibly_lost = self.claimed = False
        self.queue: str | None = None
        self.worker: str | None = None
        self.lost: str | None = None
        self.pending_outcome: str | None = None
        self.refused: ft.Failure | None = None
        self.suspect: str | None = None
        self.sent_at: float | None = None
        self.absent_since: float | None = None
        self.missing_row_reason = ""
        self.eta: float | None = None
        self.expires_at: float | None = None
        self.receipt: Any = None
        self.opening: Opening | None = None
        self.index: RequestIndex | None = None
        self.key = ""
        self.position: Position = (0, 0)
        self._seen: dict[str | None, SeenNumbers] | None = None
        self.waiters: tuple[queue.SimpleQueue[None], ...] = ()

    @property
    def state(self) -> str:
        return self.current_state

    @property
    def number(self) -> int:
        """The number for asks. No message of the request has a higher epoch."""
        return max(self.epoch, self.invocation.epoch)

    @property
    def next_number(self) -> int:
        """An epoch that no message of the request has."""
        return self.unused_epoch if self.unused_epoch >= self.epoch else self.epoch + 1

    @property
    def live(self) -> bool:
        """Whether the request has no outcome yet and was not forgotten."""
        return self.current_state not in pr.STOP_STATES and self.epoch != WITHDRAWN

    @property
    def in_doubt(self) -> bool:
        """Whether the request is checked, because it is not certain that a worker has it."""
        return self.lookups > 0 and self.live

    @property
    def broker_priority(self) -> int:
        return min(9, max(0, self.invocation.priority))

    def read_times(self, now: float, wall: float) -> None:
        """Read `eta` and `expires` of the task, unless its run has read them.

        :param wall: `now` as Unix time.
        :raises TypeError, ValueError: if they are not valid.
        """
        call = self.invocation
        start_times.read(call, now, wall)
        if call.task.eta is not None:
            self.eta = call.not_before
        self.expires_at = call.not_after

    def is_current_reply(self, reply: Reply) -> bool:
        return reply.epoch is None or self.lowest_epoch <= reply.epoch <= self.epoch

    def refusal(self, reply: Reply) -> str | None:
        """Return the reason to drop a reply to this request, or None if it is new.

        A reply counts once, for the current epoch of a request without an outcome.
        """
        state = reply.state
        if not self.live:
            return "late"
        if state in pr.WAITING_STATES:
            return "unexpected"
        if not self.is_current_reply(reply):
            return "old_epoch"
        if state == pr.RUNNING:
            if self.claimed and reply.ask_number is None:
                self.heard = True
                return None  # The request waited for a slot.
            heard_before, self.heard = self.heard, True
            if self.state == pr.RUNNING:
                return "duplicate" if heard_before else "reordered"
        # Only events need this check: a second RUNNING has no effect, and the first result counts.
        if state == pr.EVENT and reply.seq:  # TaskFlow's workers do not number their messages.
            self._seen = self._seen or {}
            if not self._seen.setdefault(reply.worker, SeenNumbers()).add(reply.seq):
                return "duplicate"
        return None

    def adopt(self, epoch: int | None) -> None:
        """Accept only messages of this epoch (None: the present one)."""
        if epoch is not None:
            self.epoch = epoch
        self.lowest_epoch = self.epoch

    def release(self) -> None:
        """Forget the owner, which did not start the request."""
        self.lookups = 0
        self.worker = self.lost = None
        self.denied = self.claimed = False

    def row_to_open(self) -> Opening:
        """Return the row to open when the request is published; one object for each epoch."""
        if self.opening is None:
            self.opening = Opening(self.id, self.epoch, self.fence)
        return self.opening

    def next_epoch(self, epoch: int) -> None:
        self.epoch = self.lowest_epoch = epoch
        self.opened = self.heard = self.possibly_lost = self.claimed = False
        self.sent_at = self.suspect = self.opening = None
        self.lookups = self.publish_count = 0
        self._seen = None

    def _packer(self, extended: bool) -> Callable[[Any, str], Any]:
        """Return the encoder of arguments. TaskFlow's workers get all values in the message."""
        pack, call = env.packer(extended), self.invocation
        payloads = call.payloads

        def encode(value: Any, where: str) -> Any:
            if not extended:
                return pack(_payloads.loaded(payloads, value, where), where)
            if payloads is not None:
                value = payloads.store_large(value, where, call.flow_uuid)
            return pack(value, where)

        return encode

    def envelope(
        self,
        reply_to: str,
        options: RequestOptions,
        *,
        extended: bool,
        ledger: str | None,
        expires: float | None = None,
    ) -> env.Envelope:
        """Return the REQUEST for the queue of this request, in its present epoch.

        For workers without the extended protocol, it has no headers of that protocol. It has no
        priority either: kombu's transports order priorities the other way round.

        :param expires: Unix time after which workers must not start it.
        :raises InvalidFormat: if an argument cannot be encoded, or the message is too large.
        :raises TypeError, ValueError: if the time limit of the task is not valid.
        """
        call = self.invocation
        task_limit = call.task.timelimit
        limit = (
            options.timelimit
            if task_limit is None
            else time_limits.read(task_limit, "timelimit of the task")
        )
        request = RequestMessage(
            self.id,
            reply_to,
            self.encode(self._packer(extended), extended),
            extended,
            epoch=self.epoch,
            attempt=call.attempt,
            flow=call.flow_uuid,
            ledger=ledger,
            captures=call.captures,
            limit=limit,
            expires=expires,
            row="" if call.task.transaction is None else invocation.row_key(call),
            settled=call.settled,
            stores_large=call.payloads is not None,
        )
        envelope = request.to_message(
            self.queue or "",
            priority=self.broker_priority if extended else 0,
            persistent=ledger is None
            if options.broker_persistent is None
            else options.broker_persistent,
            shown_arguments=call.arguments if options.trace_arguments else None,
        )
        env.check_size(envelope, call.task.name, "the request", options.max_message_size)
        return envelope

    def described(
        self, started: float | None = None, ended: float | None = None, error: str | None = None
    ) -> tuple[Any, ...]:
        """Return the fields of a `RequestSnapshot`, with `submitted` on the tracker's clock."""
        call = self.invocation
        shown = snapshots.QUEUED if self.claimed and self.live else _SNAPSHOT_STATES[self.state]
        if error is not None:
            error = error.partition("\n")[0][:_MAX_ERROR_LENGTH]
        return (
            self.id, call.task.name, self.task_cls, call.action, call.attempt, self.epoch,
            shown, call.uuid, self.flow, self.queue, self.worker, call.priority,
            self.born, started, ended, error,
        )  # fmt: skip

    def loss(self, worker: str | None = None) -> ft.Failure:
        """Return the failure after the loss of `worker` (default: the last worker)."""
        name = worker or self.worker
        who = f"worker {name}" if name else "the worker"
        loss_count = (
            f"; {self.resends + 1} workers were lost with this task" if self.resends else ""
        )
        return ft.Failure.from_exception(
            exc.WorkerLost(
                f"{who} was lost while it ran task {self.invocation.task.name!r}"
                f" ({self.invocation.action}){loss_count}; whether the task took effect is unknown"
            )
        )

    def loss_of_row(self) -> ft.Failure:
        """Return the failure of a request that an earlier run may have sent with another ledger."""
        return ft.Failure.from_exception(
            exc.WorkerLost(
                f"whether task {self.invocation.task.name!r} ({self.invocation.action}) ran is"
                f" unknown, because {self.missing_row_reason}; resume the flow with the broker and"
                " ledger of its earlier run, or set idempotent = True if the task may run twice"
            )
        )

    def failure_before_start(self) -> ft.Failure:
        """Return the failure of a request with a pending outcome that does not run."""
        if self.ran:
            return self.loss()
        name = self.invocation.task.name
        if self.pending_outcome == REFUSED and self.refused is not None:
            return self.refused
        if self.pending_outcome == EXPIRED:
            return ft.Failure.from_exception(
                exc.Expired(f"task {name!r} expired before it started")
            )
        self.invocation.cancellation.prevented = True
        return ft.Failure.from_exception(
            exc.Cancelled(f"task {name!r} was cancelled before it started")
        )

    def release_waiters(self) -> None:
        for ended in self.waiters:
            ended.put(None)

    def leave_index(self) -> None:
        if self.index is not None:
            self.index.remove(self)


@dataclass(slots=True)
class OfRequest:
    """Base of values that concern one request: events, decisions and effects."""

    tracked: TrackedRequest


class RequestIndex:
    """Requests by key, in the order of insertion. Keys without requests are removed."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, TrackedRequest]] = {}

    def put(self, key: str, tracked: TrackedRequest) -> None:
        """Move a request from its present index to this one."""
        if tracked.index is not None:
            tracked.index.remove(tracked)
        self._rows.setdefault(key, {})[tracked.id] = tracked
        tracked.index, tracked.key = self, key

    def remove(self, tracked: TrackedRequest) -> None:
        row = self._rows[tracked.key]
        del row[tracked.id]
        if not row:
            del self._rows[tracked.key]
        tracked.index = None

    def count(self, key: str) -> int:
        return len(self._rows.get(key, ()))

    def get(self, key: str, limit: int | None = None) -> list[TrackedRequest]:
        """Return a new list of the first `limit` requests under `key` (default: all)."""
        return list(itertools.islice(self.each(key), limit))

    def each(self, key: str) -> Iterable[TrackedRequest]:
        """Return the requests under `key`. Do not move them during the iteration."""
        return self._rows.get(key, {}).values()

    def first(self, key: str) -> TrackedRequest | None:
        return next(iter(self.each(key)), None)

    def names(self) -> list[str]:
        return list(self._rows)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __bool__(self) -> bool:
        return bool(self._rows)


class Backlog(RequestIndex):
    """An index that returns the first request of a key by position. Cost: O(log n) each."""

    __slots__ = ("_heaps", "_order")

    def __init__(self) -> None:
        super().__init__()
        self._heaps: dict[str, list[tuple[Position, int, TrackedRequest]]] = {}
        self._order = itertools.count()

    def put(self, key: str, tracked: TrackedRequest) -> None:
        super().put(key, tracked)
        heap = self._heaps.setdefault(key, [])
        heapq.heappush(heap, (tracked.position, next(self._order), tracked))

    def remove(self, tracked: TrackedRequest) -> None:
        super().remove(tracked)
        if tracked.key not in self._rows:
            del self._heaps[tracked.key]

    def first(self, key: str) -> TrackedRequest | None:
        """Return the request under `key` with the lowest position."""
        if key not in self._rows:
            return None
        heap = self._heaps[key]
        while heap[0][2].index is not self or heap[0][2].key != key:
            heapq.heappop(heap)  # The request was moved to another index.
        return heap[0][2]


class InFlight(RequestIndex):
    """The requests in queues of the broker, how far each queue is consumed, and its losses."""

    __slots__ = ("_last_losses", "_reached")

    def __init__(self) -> None:
        super().__init__()
        # By key: positions and times of consumed requests. The consumption of a request removes
        # entries with the same or a lower position.
        self._reached: dict[str, list[tuple[Position, float]]] = {}
        self._last_losses: dict[str, float] = {}

    def remove(self, tracked: TrackedRequest) -> None:
        super().remove(tracked)
        if tracked.key not in self._rows:
            self._reached.pop(tracked.key, None)

    def record_consumed(self, tracked: TrackedRequest, now: float) -> None:
        """Record that a request was consumed, and remove it."""
        reached = self._reached.setdefault(tracked.key, [])
        while reached and reached[-1][0] <= tracked.position:
            reached.pop()
        reached.append((tracked.position, now))
        self.remove(tracked)

    def passed_since(self, key: str, since: float) -> list[TrackedRequest]:
        """Return the requests that precede a request consumed after `since`."""
        reached = self._reached.get(key)
        if not reached or reached[-1][1] <= since:
            return []
        furthest = reached[0][0]  # Later entries have lower positions.
        return [tracked for tracked in self._rows[key].values() if tracked.position < furthest]

    def is_passed(self, tracked: TrackedRequest) -> bool:
        """Return whether a later request was consumed since this one was sent."""
        for position, at in reversed(self._reached.get(tracked.key, ())):
            if at <= (tracked.sent_at or math.inf):
                break
            if position > tracked.position:
                return True
        return False

    def is_stalled(self, key: str, now: float) -> bool:
        """Return whether requests wait and none was consumed for some time."""
        reached = self._reached.get(key)
        return (
            now - (reached[-1][1] if reached else -math.inf) > STANDSTILL_SECONDS
            and (oldest := self.first(key)) is not None
            and now - oldest.since > STANDSTILL_SECONDS
        )

    def record_loss(self, key: str, now: float) -> None:
        """Record that a queue lost a worker."""
        self._last_losses[key] = now

    def last_loss(self, key: str | None) -> float:
        return self._last_losses.get(key or "", -math.inf)

    def is_approached(self, tracked: TrackedRequest) -> bool:
        """Return whether the queue was consumed since the request waits, but not beyond it."""
        reached = self._reached.get(tracked.key)
        if not reached:
            return False
        return reached[0][0] < tracked.position and reached[-1][1] > tracked.since


class TimerHeap:
    """Timers of requests. They are valid until the request starts, or during a search.

    `EXPIRY` is valid until the request ends.
    """

    __slots__ = ("_count", "_count_after_tidy", "_heap", "_last", "_order")

    def __init__(self) -> None:
        # Consecutive timers with the same time share an entry.
        self._heap: list[_Timer] = []
        self._last: dict[str, _Timer] = {}
        self._count = 0
        # Number of timers after the last `tidy`.
        self._count_after_tidy = 0
        self._order = itertools.count()

    def __len__(self) -> int:
        return self._count

    def set(self, at: float, kind: str, tracked: TrackedRequest) -> None:
        self._count += 1
        previous = self._last.get(kind)
        if previous is not None and previous[0] == at:
            previous[3].append(tracked)
        else:
            self._last[kind] = timer = (at, next(self._order), kind, [tracked])
            heapq.heappush(self._heap, timer)

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[str, TrackedRequest]]:
        """Yield the expired timers, including those that are set to a past time in between.

        Cost: O(log n) each.
        """
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)
            at, order, kind, requests = timer
            if self._last.get(kind) is timer:
                del self._last[kind]
            remaining = iter(requests)
            try:
                for tracked in remaining:
                    self._count -= 1
                    if _is_valid_timer(kind, tracked):
                        yield kind, tracked
            finally:  # The caller may raise.
                if rest := list(remaining):
                    heapq.heappush(self._heap, (at, order, kind, rest))

    def tidy(self, requests: int) -> None:
        """Remove invalid timers if there are many for this number of requests.

        Cost: O(1) amortized.
        """
        if (
            requests
            and self._count <= 2 * max(requests, self._count_after_tidy) + _MAX_STALE_TIMERS
        ):
            return
        valid = (
            (at, n, kind, [tracked for tracked in of if _is_valid_timer(kind, tracked)])
            for at, n, kind, of in self._heap
        )
        self._heap = [timer for timer in valid if timer[3]] if requests else []
        heapq.heapify(self._heap)
        self._last.clear()
        self._count_after_tidy = self._count = sum(len(timer[3]) for timer in self._heap)


def _is_valid_timer(kind: str, tracked: TrackedRequest) -> bool:
    waits = tracked.state in pr.WAITING_STATES or tracked.lookups > 0
    # A running request may be sent again if its worker is lost.
    return tracked.live and (waits or kind == EXPIRY)


class RequestTable:
    """All requests, in the order of submission, from submission until their outcome is saved."""

    def __init__(self) -> None:
        self._by_id: dict[str, TrackedRequest] = {}
        self._by_flow: dict[str, dict[str, TrackedRequest]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> TrackedRequest | None:
        return self._by_id.get(id)

    def add(self, tracked: TrackedRequest) -> None:
        """Add a request.

        :raises Duplicate: if there is a request with its id.
        """
        if tracked.id in self._by_id:
            raise exc.Duplicate(f"request {tracked!r} is already tracked")
        self._by_id[tracked.id] = tracked
        self._by_flow.setdefault(tracked.flow, {})[tracked.id] = tracked

    def remove(self, tracked: TrackedRequest) -> None:
        del self._by_id[tracked.id]
        requests = self._by_flow[tracked.flow]
        del requests[tracked.id]
        if not requests:
            del self._by_flow[tracked.flow]

    def of_flow(self, flow: str | None) -> list[TrackedRequest]:
        """Return the requests of one flow, by its uuid, or all requests."""
        return list((self._by_id if flow is None else self._by_flow.get(flow, {})).values())

    def unfinished(self, flow: str | None = None) -> list[TrackedRequest]:
        return [tracked for tracked in self.of_flow(flow) if tracked.live]

    def unstarted(self, flow: str | None = None) -> list[TrackedRequest]:
        """Return the unfinished requests that no worker is known to have started.

        Dispatched requests must be revoked before they are forgotten, except inherited ones
        (`RequestTracker.is_inherited`), which this run has not sent.
        """
        return [tracked for tracked in self.unfinished(flow) if tracked.state in pr.WAITING_STATES]


class EarlyReplies(OrderedDict[str, tuple[Reply, Any]]):
    """Terminal replies with their receipts, by id of requests that are not submitted yet.

    Only an engine that takes over the name of an earlier one receives them.
    """

    def keep(self, reply: Reply, receipt: Any) -> Any:
        """Keep the first reply to a request.

        :returns: the receipt to acknowledge now, or None: that of a second reply to the request,
            or that of the oldest reply if there are too many.
        """
        if reply.request_id in self:
            return receipt
        self[reply.request_id] = reply, receipt
        return self.popitem(last=False)[1][1] if len(self) > MAX_EARLY_REPLIES else None
