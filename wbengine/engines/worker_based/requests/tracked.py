"""A request while its tracker has it: what is known of it, where it waits, and its timers."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine.concurrency import limits
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery import snapshots
from wbengine.engines.worker_based.ledger.base import Opening
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import traces
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.types import failure as ft

# Kinds of timers.
#: The `transition_timeout` of a request is over.
TIMEOUT: Final = "timeout"
#: No worker has promised to answer yet.
LOOKUP: Final = "lookup"
#: It waits for a worker, and people should know.
WARN: Final = "warn"
#: It waits for a worker although a message of it is out.
STRAY: Final = "stray"
#: Its `eta` has come.
DUE: Final = "due"
#: It is not to be started from now on.
EXPIRY: Final = "expiry"
#: There was no queue for it a moment ago.
REPUBLISH: Final = "republish"

# Pending outcomes: how a request ends that turns out not to run.
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
REFUSED: Final = "refused"

# Why a request is searched for where there is no ledger: its message may be lost (its queue seems
# not to have it: once, then twice), or its worker.
UNSENT: Final = "unsent"
UNSEEN: Final = "unseen"
ABSENT: Final = "absent"
LOST: Final = "lost"

#: The states of requests as people are shown them.
_SHOWN: Final[Mapping[str, snapshots.State]] = {
    pr.WAITING: snapshots.DEFERRED,
    pr.PENDING: snapshots.QUEUED,
    pr.RUNNING: snapshots.STARTED,
    pr.SUCCESS: snapshots.FINISHED,
    pr.FAILURE: snapshots.FAILED,
}

#: So much of an error is shown.
_LONGEST_ERROR: Final = 500

#: Where a request stands in the line of its queue: the more urgent first, then the earlier.
Place = tuple[int, int]
_NOWHERE: Final[Place] = (0, 0)

#: When, the how many-th that was set, of which kind, and for which requests.
_Timer = tuple[float, int, str, list["TrackedRequest"]]

#: So many outdated timers are kept before the heap is tidied.
_STALE_TIMERS: Final = 1000

#: Epoch of a request that was forgotten: no message of it is current any more.
WITHDRAWN: Final = -1


class TrackedRequest:
    """One request.  It waits in one `RequestIndex` at most, under a `key`.

    *Publishing*: `dispatched`: it was handed out at least once, so that a row and a message of it
    may exist.  Its publisher sets `sendings` (how often publishing has begun), `opening` (how its
    row is made while it is published, where that was tried), `opened` (the row exists) and
    `sent_at` (when its message was published last, on the tracker's clock).

    *Epochs*: answers count from `lowest_epoch` to `epoch`; nothing was sent yet under
    `unused_epoch`.

    *Who has it*: `ran`: some worker had it; `claimed`: one is known to have it, and not whether it
    has begun it, or waits for a slot there; `worker`: the last one; `lost`: a worker that is known
    to be gone with it; `maybe_lost`: one that is gone may have had it in this epoch; `resends`: how
    often it was sent again because its worker was lost.

    *Looking for it*: `lookups`: how often, since no worker is known to answer here; `denied`: its
    holder says that it has it no more; without a ledger `suspect` and `asked_at`, why and
    since when.

    *Times*: it may be started from `eta` on, and up to `expires_at`.  `pending_outcome` is what it
    ends with once it is certain that it does not run; `refused` the failure that a worker answered
    with, whose row has none.
    """

    __slots__ = (
        "_seqs", "asked_at", "born", "claimed", "denied", "dispatched", "done", "epoch", "eta",
        "expires_at", "flow", "heard", "id", "index", "invocation", "key", "lookups", "lost",
        "lowest_epoch", "maybe_lost", "opened", "opening", "pending_outcome", "place", "queue",
        "ran", "receipt", "refused", "request", "resends", "sendings", "sent_at", "suspect",
        "task_cls", "unused_epoch", "worker",
    )  # fmt: skip

    def __init__(
        self, call: invocation.Invocation, done: invocation.Done, timeout: float | None, now: float
    ) -> None:
        #: The correlation id of its messages, and the name of its row.
        self.id = invocation.request_id(
            call.uuid, call.action, call.attempt, call.index, call.resumed
        )
        self.invocation = call
        self.flow = call.flow_uuid
        self.done = done
        self.task_cls = _names.class_name(type(call.task))
        self.request = pr.Request(
            call.task,
            call.uuid,
            call.action,
            call.arguments,
            timeout,
            call.result if call.action == invocation.REVERT else pr.NO_RESULT,
            call.failures,
        )
        self.request.since = self.born = now
        self.epoch = self.lowest_epoch = self.unused_epoch = call.epoch
        self.lookups = self.resends = self.sendings = 0
        self.asked_at = now
        self.denied = self.dispatched = self.opened = self.heard = False
        self.ran = self.maybe_lost = self.claimed = False
        self.queue: str | None = None
        self.worker: str | None = None
        self.lost: str | None = None
        self.pending_outcome: str | None = None
        self.refused: ft.Failure | None = None
        self.suspect: str | None = None
        self.sent_at: float | None = None
        self.eta: float | None = None
        self.expires_at: float | None = None
        self.receipt: Any = None
        self.opening: Opening | None = None
        self.index: RequestIndex | None = None
        self.key = ""
        self.place = _NOWHERE
        self._seqs: set[tuple[str | None, int]] | None = None

    @property
    def state(self) -> str:
        return self.request.current_state

    @property
    def number(self) -> int:
        """The number under which its engine asks for it: no message of it bears a higher one."""
        return max(self.epoch, self.invocation.epoch)

    @property
    def next_number(self) -> int:
        """A number under which nothing of it was sent yet."""
        return self.unused_epoch if self.unused_epoch >= self.epoch else self.epoch + 1

    @property
    def live(self) -> bool:
        """Whether the request has no outcome yet (and was not forgotten)."""
        return self.request.current_state not in pr.STOP_STATES and self.epoch != WITHDRAWN

    def fresh(self, worker: str | None, seq: int) -> bool:
        """Whether `worker` told nothing numbered `seq` of this epoch before; notes that it did."""
        if not seq:
            return True  # a peer that does not number what it tells
        if self._seqs is None:
            self._seqs = set()
        size = len(self._seqs)
        self._seqs.add((worker, seq))
        return len(self._seqs) > size

    def refusal(self, answer: env.Envelope) -> str | None:
        """Why a validated RESPONSE is to be dropped; None for one that tells something new."""
        state = answer.body["state"]
        if not self.live:
            return "late"
        if state in pr.WAITING_STATES:
            return "unexpected"
        if not self.speaks_of(answer):
            return "old_epoch"
        if state == pr.RUNNING:
            if self.claimed and env.WBE_ASK not in answer.headers:
                self.heard = True
                return None  # it waited for a slot there until now
            again, self.heard = self.heard, True
            if self.state == pr.RUNNING:
                return "duplicate" if again else "reordered"
        # Only events need their numbers: RUNNING changes nothing twice, and the first end wins.
        if state == pr.EVENT and not self.fresh(
            answer.text(env.WBE_WORKER), answer.number(env.WBE_SEQ)
        ):
            return "duplicate"
        return None

    def speaks_of(self, answer: env.Envelope) -> bool:
        """Whether an answer is about this request in its present epoch."""
        return self.lowest_epoch <= answer.number(env.WBE_EPOCH, self.epoch) <= self.epoch

    def adopt(self, epoch: int) -> None:
        """A worker has the request under this epoch."""
        self.epoch = self.lowest_epoch = epoch

    def row_to_open(self) -> Opening:
        """The row that is made in one step with publishing it; the same one however often."""
        if self.opening is None:
            self.opening = Opening(self.id, self.epoch)
        return self.opening

    def next_epoch(self, epoch: int) -> None:
        """What was said of the request so far is of the past."""
        self.epoch = self.lowest_epoch = epoch
        self.opened = self.heard = self.maybe_lost = self.claimed = False
        self.sent_at = self.suspect = self.opening = None
        self.lookups = self.sendings = 0
        self._seqs = None

    def envelope(
        self, reply_to: str, options: RequestOptions, *, ours: bool, ledger: str | None
    ) -> env.Envelope:
        """The REQUEST for the queue it was routed to, in its present epoch.

        Those who are not `ours` are told nothing that only our own understand, and no priority,
        which kombu's transports order the other way round.

        :raises InvalidFormat: an argument cannot be sent, or all of them are too large.
        :raises TypeError, ValueError: the task's time limit is none.
        """
        call = self.invocation
        headers: dict[str, Any] = {
            env.LANG: "py",
            env.TASK: self.task_cls,
            env.ID: self.id,
            env.RETRIES: call.attempt - 1,
        }
        if ours:
            headers[env.WBE_VERSION] = env.VERSION
            headers[env.WBE_ATTEMPT] = call.attempt
            headers[env.WBE_EPOCH] = self.epoch
            if call.captures:
                headers[env.WBE_LOGS] = 1
        if call.flow_uuid:
            headers[env.ROOT_ID] = call.flow_uuid
        if ledger is not None:
            headers[env.WBE_LEDGER] = ledger
        own = call.task.timelimit
        limit = options.timelimit if own is None else limits.read(own, "timelimit of the task")
        if limit is not limits.UNLIMITED:
            headers[env.TIMELIMIT] = [limit.hard, limit.soft]
        if options.trace_arguments:
            headers |= traces.headers(call.arguments)
        envelope = env.Envelope(
            pr.REQUEST,
            self.request.encode(env.packer(ours)),
            routing_key=self.queue or "",
            correlation_id=self.id,
            reply_to=reply_to,
            headers=headers,
            priority=min(9, max(0, call.priority)) if ours and call.priority else 0,
            persistent=ledger is None
            if options.broker_persistent is None
            else options.broker_persistent,
        )
        env.check_size(envelope, call.task.name, "the request", options.max_message_size)
        return envelope

    def described(
        self, started: float | None = None, ended: float | None = None, error: str | None = None
    ) -> tuple[Any, ...]:
        """The fields of a `RequestSnapshot`; but `submitted` is on the tracker's clock."""
        call = self.invocation
        shown = snapshots.QUEUED if self.claimed and self.live else _SHOWN[self.state]
        if error is not None:
            error = error.partition("\n")[0][:_LONGEST_ERROR]
        return (
            self.id, call.task.name, self.task_cls, call.action, call.attempt, self.epoch,
            shown, call.uuid, self.flow, self.queue, self.worker, call.priority,
            self.born, started, ended, error,
        )  # fmt: skip

    def loss(self) -> ft.Failure:
        """What it ends with when nobody can tell what became of it."""
        who = f"worker {self.worker}" if self.worker else "the worker"
        often = f"; it was lost with {self.resends + 1} workers" if self.resends else ""
        return ft.Failure.from_exception(
            exc.WorkerLost(
                f"{who} was lost while it ran task {self.invocation.task.name!r}"
                f" ({self.invocation.action}){often}; whether the task took effect is unknown"
            )
        )

    def failure_before_start(self) -> ft.Failure:
        """What it ends with by its `pending_outcome`."""
        name = self.invocation.task.name
        if self.pending_outcome == REFUSED and self.refused is not None:
            return self.refused
        if self.pending_outcome == EXPIRED:
            return ft.Failure.from_exception(
                exc.Expired(f"task {name!r} was not started in the time that it had for that")
            )
        return ft.Failure.from_exception(
            exc.Cancelled(f"task {name!r} was cancelled before it started")
        )

    def leave(self) -> None:
        """Wait nowhere."""
        if self.index is not None:
            self.index.remove(self)


class RequestIndex:
    """Requests by a key, in the order in which they came; a key without any is not kept."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, TrackedRequest]] = {}

    def put(self, key: str, tracked: TrackedRequest) -> None:
        """Move a request here, from wherever it waits."""
        if tracked.index is not None:
            tracked.index.remove(tracked)
        row = self._rows.get(key)
        if row is None:
            self._rows[key] = {tracked.id: tracked}
        else:
            row[tracked.id] = tracked
        tracked.index, tracked.key = self, key

    def remove(self, tracked: TrackedRequest) -> None:
        row = self._rows[tracked.key]
        del row[tracked.id]
        if not row:
            del self._rows[tracked.key]
        tracked.index = None

    def count(self, key: str) -> int:
        row = self._rows.get(key)
        return len(row) if row is not None else 0

    def get(self, key: str, most: int | None = None) -> list[TrackedRequest]:
        """The requests under `key` (the first of them), which may then be moved."""
        return list(itertools.islice(self.each(key), most))

    def each(self, key: str) -> Iterable[TrackedRequest]:
        """The requests under `key`, none of which may be moved meanwhile."""
        return self._rows.get(key, {}).values()

    def first(self, key: str) -> TrackedRequest | None:
        """The one of those under `key` that came first."""
        row = self._rows.get(key)
        return next(iter(row.values())) if row is not None else None

    def names(self) -> list[str]:
        """The keys that have requests."""
        return list(self._rows)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __bool__(self) -> bool:
        return bool(self._rows)


class Backlog(RequestIndex):
    """An index that also hands out the requests of a key by their place.  O(log n) each."""

    __slots__ = ("_heaps", "_order")

    def __init__(self) -> None:
        super().__init__()
        self._heaps: dict[str, list[tuple[Place, int, TrackedRequest]]] = {}
        self._order = itertools.count()

    def put(self, key: str, tracked: TrackedRequest) -> None:
        super().put(key, tracked)
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = []
        heapq.heappush(heap, (tracked.place, next(self._order), tracked))

    def remove(self, tracked: TrackedRequest) -> None:
        super().remove(tracked)
        if tracked.key not in self._rows:
            del self._heaps[tracked.key]

    def first(self, key: str) -> TrackedRequest | None:
        """The request under `key` with the least place; it stays where it is."""
        if key not in self._rows:
            return None
        heap = self._heaps[key]
        while heap[0][2].index is not self or heap[0][2].key != key:
            heapq.heappop(heap)  # it was moved elsewhere since
        return heap[0][2]


class InFlight(RequestIndex):
    """The requests that stand in the line of a broker's queue: knows how far the line came."""

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        super().__init__()
        # By key, what was taken and when: later ones, and earlier ones that stood further behind.
        self._reached: dict[str, list[tuple[Place, float]]] = {}

    def remove(self, tracked: TrackedRequest) -> None:
        super().remove(tracked)
        if tracked.key not in self._rows:
            self._reached.pop(tracked.key, None)

    def serve(self, tracked: TrackedRequest, now: float) -> None:
        """A request that stands here was taken."""
        reached = self._reached.get(tracked.key)
        if reached is None:
            reached = self._reached[tracked.key] = []
        while reached and reached[-1][0] <= tracked.place:
            reached.pop()
        reached.append((tracked.place, now))
        self.remove(tracked)

    def behind(self, key: str, since: float) -> list[TrackedRequest]:
        """Those that the line may have passed, if it has moved since then."""
        reached = self._reached.get(key)
        if not reached or reached[-1][1] <= since:
            return []
        furthest = reached[0][0]  # later ones stood further in front
        return [tracked for tracked in self._rows[key].values() if tracked.place < furthest]

    def passed(self, tracked: TrackedRequest) -> bool:
        """Whether others were taken, since it was sent, that stand behind it."""
        for place, at in reversed(self._reached.get(tracked.key, ())):
            if at <= (tracked.sent_at or math.inf):
                break
            if place > tracked.place:
                return True
        return False

    def moved(self, key: str) -> float:
        """When a request that stood here was taken last."""
        reached = self._reached.get(key)
        return reached[-1][1] if reached else -math.inf

    def approaches(self, tracked: TrackedRequest) -> bool:
        """Whether the line has moved while a request stood in it, and not past it."""
        reached = self._reached.get(tracked.key)
        if not reached:
            return False
        return reached[0][0] < tracked.place and reached[-1][1] > tracked.request.since


class TimerHeap:
    """Timers of requests.  One counts only as long as its request has not started, or is looked
    for.
    """

    __slots__ = ("_count", "_heap", "_kept", "_last", "_order")

    def __init__(self) -> None:
        # Those that are set to one time, one after the other, are one.
        self._heap: list[_Timer] = []
        self._last: dict[str, _Timer] = {}
        self._count = 0
        # How many there were when they were tidied last.
        self._kept = 0
        self._order = itertools.count()

    def __len__(self) -> int:
        return self._count

    def set(self, at: float, kind: str, tracked: TrackedRequest) -> None:
        self._count += 1
        last = self._last.get(kind)
        if last is not None and last[0] == at:
            last[3].append(tracked)
        else:
            self._last[kind] = timer = (at, next(self._order), kind, [tracked])
            heapq.heappush(self._heap, timer)

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[str, TrackedRequest]]:
        """What is due, including what is set to a past time meanwhile; O(log n) each."""
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)
            at, order, kind, requests = timer
            if self._last.get(kind) is timer:
                del self._last[kind]
            left = iter(requests)
            try:
                for tracked in left:
                    self._count -= 1
                    if _counts(tracked):
                        yield kind, tracked
            finally:  # the caller may fail with one of them
                if rest := list(left):
                    heapq.heappush(self._heap, (at, order, kind, rest))

    def tidy(self, requests: int) -> None:
        """Let go of what has ended; there are `requests` requests.  O(1) amortised."""
        if requests and self._count <= 2 * max(requests, self._kept) + _STALE_TIMERS:
            return
        kept = ((at, n, kind, list(filter(_counts, of))) for at, n, kind, of in self._heap)
        self._heap = [timer for timer in kept if timer[3]] if requests else []
        heapq.heapify(self._heap)
        self._last.clear()
        self._kept = self._count = sum(len(timer[3]) for timer in self._heap)


def _counts(tracked: TrackedRequest) -> bool:
    return (tracked.state in pr.WAITING_STATES or tracked.lookups > 0) and tracked.live
