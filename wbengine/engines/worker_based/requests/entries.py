"""The requests of a book, and the one place where each of them waits."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine.concurrency import limits
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import traces
from wbengine.engines.worker_based.requests import reasons
from wbengine.engines.worker_based.requests import terms as terms_module
from wbengine.types import failure as ft

#: Where a request stands in the line of its queue: the more urgent first, then the earlier.
Place = tuple[int, int]
_NOWHERE: Final[Place] = (0, 0)

#: When, the how many-th that was set, of which kind, and for whom.
_Alarm = tuple[float, int, str, list["Entry"]]

#: Outdated alarms that are kept before those are looked for that still mean something.
_STALE_ALARMS: Final = 1000

#: Epoch of a request that was taken out of the book: no message of it is current any more.
WITHDRAWN: Final = -1

#: The correlation id of its messages, and the name of its row.
request_id: Final = invocation.request_id


class Entry:
    """One request in the book.

    It is on at most one `Shelf` at a time.  `dispatched` says that it was handed out for publishing
    at least once, so that a row and a message of it may exist; `sendings` and `opened`, set by
    whoever publishes it, how often this has begun, and that the row exists.

    Answers count whose epoch is from `floor` to `epoch`; under `unused`, nothing was sent yet.
    `doubts` is how often it was looked for since nobody is known to answer here; `denied` that its
    holder says he has it no more.

    `sent_at` is when its message was published last, on the clock of the book, set by whoever
    publishes it (None: not yet); `ran` that somebody had it, `risked` that one who is lost may have
    had it in this epoch; `lost` the worker that is known to be gone with it, and `resends` how
    often it was sent again because of such a one.  `eta` and `lapse` are the moments from which on,
    and up to which, it may be started.  `fate` is what it ends with once it is certain that it does
    not run; `suspect` and `asked_at`, without a ledger, why and since when it is searched for (see
    `reasons`).
    """

    __slots__ = (
        "_seqs", "asked_at", "born", "denied", "dispatched", "done", "doubts", "epoch", "eta",
        "fate", "floor", "flow", "heard", "id", "invocation", "key", "lapse", "lost", "opened",
        "place", "queue", "ran", "receipt", "request", "resends", "risked", "sendings", "sent_at",
        "shelf", "suspect", "task_cls", "unused", "worker",
    )  # fmt: skip

    def __init__(
        self, call: invocation.Invocation, done: invocation.Done, timeout: float | None, now: float
    ) -> None:
        self.id = request_id(call.uuid, call.action, call.attempt, call.index, call.resumed)
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
        self.epoch = self.floor = self.unused = call.epoch
        self.doubts = self.resends = self.sendings = 0
        self.asked_at = now
        self.denied = self.dispatched = self.opened = self.heard = False
        self.ran = self.risked = False
        self.queue: str | None = None
        self.worker: str | None = None
        self.lost: str | None = None
        self.fate: str | None = None
        self.suspect: str | None = None
        self.sent_at: float | None = None
        self.eta: float | None = None
        self.lapse: float | None = None
        self.receipt: Any = None
        self.shelf: Shelf | None = None
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
        return self.unused if self.unused >= self.epoch else self.epoch + 1

    @property
    def live(self) -> bool:
        """Whether the request has no outcome yet (and is still in the book)."""
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
        return self.floor <= answer.number(env.WBE_EPOCH, self.epoch) <= self.epoch

    def adopt(self, epoch: int) -> None:
        """Somebody has the request under this epoch."""
        self.epoch = self.floor = epoch

    def next_epoch(self, epoch: int) -> None:
        """What was said of the request so far is of the past."""
        self.epoch = self.floor = epoch
        self.opened = self.heard = self.risked = False
        self.sent_at = self.suspect = None
        self.doubts = self.sendings = 0
        self._seqs = None

    def envelope(
        self, reply_to: str, terms: terms_module.Terms, *, ours: bool, ledger: str | None
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
        if call.flow_uuid:
            headers[env.ROOT_ID] = call.flow_uuid
        if ledger is not None:
            headers[env.WBE_LEDGER] = ledger
        own = call.task.timelimit
        limit = terms.timelimit if own is None else limits.read(own, "timelimit of the task")
        if limit is not limits.UNLIMITED:
            headers[env.TIMELIMIT] = [limit.hard, limit.soft]
        if terms.trace_arguments:
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
            if terms.broker_persistent is None
            else terms.broker_persistent,
        )
        env.check_size(envelope, call.task.name, "the request", terms.max_message_size)
        return envelope

    def described(self, *more: Any) -> tuple[Any, ...]:
        """What people may want to know of it when it is gone (see `overview`)."""
        call = self.invocation
        return (
            self.id, call.task.name, self.task_cls, call.action, call.attempt, self.epoch,
            call.uuid, self.flow, self.queue, self.worker, call.priority, self.born, *more,
        )  # fmt: skip

    def unknown(self) -> ft.Failure:
        """What it ends with when nobody can tell what became of it."""
        who = f"worker {self.worker}" if self.worker else "the worker"
        often = f"; it was lost with {self.resends + 1} workers" if self.resends else ""
        return ft.Failure.from_exception(
            exc.WorkerLost(
                f"{who} was lost while it ran task {self.invocation.task.name!r}"
                f" ({self.invocation.action}){often}; whether the task took effect is unknown"
            )
        )

    def doom(self) -> ft.Failure:
        """What it ends with by its `fate`."""
        name = self.invocation.task.name
        if self.fate == reasons.EXPIRED:
            return ft.Failure.from_exception(
                exc.Expired(f"task {name!r} was not started in the time that it had for that")
            )
        return ft.Failure.from_exception(
            exc.Cancelled(f"task {name!r} was cancelled before it started")
        )

    def leave(self) -> None:
        """Stand on no shelf."""
        if self.shelf is not None:
            self.shelf.remove(self)


class Shelf:
    """Entries by a key, in the order in which they came; a key without entries is not kept."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Entry]] = {}

    def put(self, key: str, entry: Entry) -> None:
        """Move `entry` here, from wherever it stands."""
        if entry.shelf is not None:
            entry.shelf.remove(entry)
        row = self._rows.get(key)
        if row is None:
            self._rows[key] = {entry.id: entry}
        else:
            row[entry.id] = entry
        entry.shelf, entry.key = self, key

    def remove(self, entry: Entry) -> None:
        row = self._rows[entry.key]
        del row[entry.id]
        if not row:
            del self._rows[entry.key]
        entry.shelf = None

    def count(self, key: str) -> int:
        row = self._rows.get(key)
        return len(row) if row is not None else 0

    def get(self, key: str, most: int | None = None) -> list[Entry]:
        """The entries under `key` (the first of them), which may then be moved."""
        return list(itertools.islice(self.each(key), most))

    def each(self, key: str) -> Iterable[Entry]:
        """The entries under `key`, none of which may be moved meanwhile."""
        return self._rows.get(key, {}).values()

    def first(self, key: str) -> Entry | None:
        """The one of those under `key` that came first."""
        row = self._rows.get(key)
        return next(iter(row.values())) if row is not None else None

    def names(self) -> list[str]:
        """The keys that have entries."""
        return list(self._rows)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __bool__(self) -> bool:
        return bool(self._rows)


class Backlog(Shelf):
    """A shelf that also hands out the entries of a key by their place.  O(log n) each."""

    __slots__ = ("_heaps", "_order")

    def __init__(self) -> None:
        super().__init__()
        self._heaps: dict[str, list[tuple[Place, int, Entry]]] = {}
        self._order = itertools.count()

    def put(self, key: str, entry: Entry) -> None:
        super().put(key, entry)
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = []
        heapq.heappush(heap, (entry.place, next(self._order), entry))

    def remove(self, entry: Entry) -> None:
        super().remove(entry)
        if entry.key not in self._rows:
            del self._heaps[entry.key]

    def first(self, key: str) -> Entry | None:
        """The entry under `key` with the least place; it stays where it is."""
        if key not in self._rows:
            return None
        heap = self._heaps[key]
        while heap[0][2].shelf is not self or heap[0][2].key != key:
            heapq.heappop(heap)  # it was moved elsewhere since
        return heap[0][2]


class Line(Shelf):
    """A shelf of what stands in the line of a broker's queue, which knows how far the line came."""

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        super().__init__()
        # By key, what was taken and when: later ones, and earlier ones that stood further behind.
        self._reached: dict[str, list[tuple[Place, float]]] = {}

    def remove(self, entry: Entry) -> None:
        super().remove(entry)
        if entry.key not in self._rows:
            self._reached.pop(entry.key, None)

    def serve(self, entry: Entry, now: float) -> None:
        """An entry that stands here was taken."""
        reached = self._reached.get(entry.key)
        if reached is None:
            reached = self._reached[entry.key] = []
        while reached and reached[-1][0] <= entry.place:
            reached.pop()
        reached.append((entry.place, now))
        self.remove(entry)

    def behind(self, key: str, since: float) -> list[Entry]:
        """Those that the line may have passed, if it has moved since then."""
        reached = self._reached.get(key)
        if not reached or reached[-1][1] <= since:
            return []
        furthest = reached[0][0]  # later ones stood further in front
        return [entry for entry in self._rows[key].values() if entry.place < furthest]

    def passed(self, entry: Entry) -> bool:
        """Whether others were taken, since it was sent, that stand behind `entry`."""
        for place, at in reversed(self._reached.get(entry.key, ())):
            if at <= (entry.sent_at or math.inf):
                break
            if place > entry.place:
                return True
        return False

    def moved(self, key: str) -> float:
        """When something that stood here was taken last."""
        reached = self._reached.get(key)
        return reached[-1][1] if reached else -math.inf

    def approaches(self, entry: Entry) -> bool:
        """Whether the line has moved while `entry` stood in it, and not past it."""
        reached = self._reached.get(entry.key)
        if not reached:
            return False
        return reached[0][0] < entry.place and reached[-1][1] > entry.request.since


class Alarms:
    """A heap of times.  An alarm means something only as long as its request has not started, or
    nobody knows whether whoever runs it answers here.
    """

    __slots__ = ("_count", "_heap", "_kept", "_last", "_order")

    def __init__(self) -> None:
        # Those that are set to one time, one after the other, are one.
        self._heap: list[_Alarm] = []
        self._last: dict[str, _Alarm] = {}
        self._count = 0
        # How many there were when they were tidied last.
        self._kept = 0
        self._order = itertools.count()

    def __len__(self) -> int:
        return self._count

    def set(self, at: float, kind: str, entry: Entry) -> None:
        self._count += 1
        last = self._last.get(kind)
        if last is not None and last[0] == at:
            last[3].append(entry)
        else:
            self._last[kind] = alarm = (at, next(self._order), kind, [entry])
            heapq.heappush(self._heap, alarm)

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[str, Entry]]:
        """What is due, including what is set to a past time meanwhile; O(log n) each."""
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)
            at, order, kind, entries = alarm
            if self._last.get(kind) is alarm:
                del self._last[kind]
            left = iter(entries)
            try:
                for entry in left:
                    self._count -= 1
                    if _means(entry):
                        yield kind, entry
            finally:  # whoever asks may fail with one of them
                if rest := list(left):
                    heapq.heappush(self._heap, (at, order, kind, rest))

    def tidy(self, entries: int) -> None:
        """Let go of what has ended; there are `entries` requests.  O(1) amortised."""
        if entries and self._count <= 2 * max(entries, self._kept) + _STALE_ALARMS:
            return
        kept = ((at, n, kind, list(filter(_means, of))) for at, n, kind, of in self._heap)
        self._heap = [alarm for alarm in kept if alarm[3]] if entries else []
        heapq.heapify(self._heap)
        self._last.clear()
        self._kept = self._count = sum(len(alarm[3]) for alarm in self._heap)


def _means(entry: Entry) -> bool:
    return (entry.state in pr.WAITING_STATES or entry.doubts > 0) and entry.live
