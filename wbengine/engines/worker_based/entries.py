"""The requests of a book, and the one place where each of them waits."""

from __future__ import annotations

import heapq
import itertools
import uuid as uuids
from collections.abc import Iterator
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.types import failure as ft

_NAMESPACE: Final = uuids.UUID("8f3e6c52-5d0b-4d6b-9c55-0b8ee3a4a7c1")

#: Where a request stands in the line of its queue: the more urgent first, then the earlier.
Place = tuple[int, int]
_NOWHERE: Final[Place] = (0, 0)

EXPIRE: Final = "expire"
LOOK: Final = "look"
WARN: Final = "warn"

#: Outdated alarms that are kept before those are looked for that still mean something.
_STALE_ALARMS: Final = 1000

#: Epoch of a request that was taken out of the book: no message of it is current any more.
WITHDRAWN: Final = -1


def request_id(uuid: str, action: str, attempt: int, index: int = -1, resumed: int = 0) -> str:
    """The same for whatever is the same run of the same thing, and for nothing else."""
    name = f"{uuid}|{action}|{attempt}"
    if index >= 0:
        name = f"{name}|{index}"
        if resumed:
            name = f"{name}|{resumed}"
    return str(uuids.uuid5(_NAMESPACE, name))


class Entry:
    """One request in the book.

    It is on at most one `Shelf` at a time.  `dispatched` says that it was handed out for publishing
    at least once, so that a row and a message of it may exist; `sending` and `opened`, set by
    whoever publishes it, that this has begun, and that the row exists.

    Answers count whose epoch is from `floor` to `epoch`.  `doubts` is how often it was looked for
    since nobody is known to answer here; `denied` that its holder says he has it no more.
    """

    __slots__ = (
        "_seqs",
        "denied",
        "dispatched",
        "done",
        "doubts",
        "epoch",
        "floor",
        "id",
        "invocation",
        "key",
        "opened",
        "place",
        "queue",
        "receipt",
        "request",
        "sending",
        "shelf",
        "task_cls",
        "worker",
    )

    def __init__(
        self, call: invocation.Invocation, done: invocation.Done, timeout: float | None, now: float
    ) -> None:
        self.id = request_id(call.uuid, call.action, call.attempt, call.index, call.resumed)
        self.invocation = call
        self.done = done
        self.task_cls = _names.class_name(type(call.task))
        self.request = pr.Request(
            call.task,
            call.uuid,
            call.action,
            call.arguments,
            timeout,
            result=call.result if call.action == invocation.REVERT else pr.NO_RESULT,
            failures=call.failures,
        )
        self.request.since = now
        self.epoch = self.floor = call.epoch
        self.doubts = 0
        self.denied = False
        self.queue: str | None = None
        self.worker: str | None = None
        self.receipt: Any = None
        self.dispatched = False
        self.sending = False
        self.opened = False
        self.shelf: Shelf | None = None
        self.key = ""
        self.place = _NOWHERE
        self._seqs: set[tuple[str | None, int]] | None = None

    @property
    def state(self) -> str:
        return self.request.current_state

    @property
    def live(self) -> bool:
        """Whether the request has no outcome yet (and is still in the book)."""
        return self.state not in pr.STOP_STATES and self.epoch != WITHDRAWN

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
        if not self.live or (state == pr.RUNNING and self.state == pr.RUNNING):
            return "late"
        if state in pr.WAITING_STATES:
            return "unexpected"
        if not self.floor <= answer.number(env.WBE_EPOCH, self.epoch) <= self.epoch:
            return "old_epoch"
        # Only events need their numbers: RUNNING changes nothing twice, and the first end wins.
        worker, number = answer.text(env.WBE_WORKER), answer.number(env.WBE_SEQ)
        if state == pr.EVENT and not self.fresh(worker, number):
            return "duplicate"
        return None

    def adopt(self, epoch: int) -> None:
        """Somebody has the request under this epoch."""
        self.epoch = self.floor = epoch

    def next_epoch(self, epoch: int) -> None:
        """What was said of the request so far is of the past."""
        self.epoch = self.floor = epoch
        self.sending = self.opened = False
        self._seqs = None

    def envelope(
        self, reply_to: str, *, ours: bool, ledger: str | None, limit: int
    ) -> env.Envelope:
        """The REQUEST for the queue it was routed to, in its present epoch.

        :raises InvalidFormat: an argument cannot be sent, or all of them are too large.
        """
        call = self.invocation
        headers: dict[str, Any] = {
            env.WBE_VERSION: env.VERSION,
            env.LANG: "py",
            env.TASK: self.task_cls,
            env.ID: self.id,
            env.WBE_ATTEMPT: call.attempt,
            env.WBE_EPOCH: self.epoch,
        }
        if call.flow_uuid:
            headers[env.ROOT_ID] = call.flow_uuid
        if ledger is not None:
            headers[env.WBE_LEDGER] = ledger
        envelope = env.Envelope(
            pr.REQUEST,
            self.request.encode(env.packer(ours)),
            routing_key=self.queue or "",
            correlation_id=self.id,
            reply_to=reply_to,
            headers=headers,
            priority=min(9, max(0, call.priority)),
        )
        env.check_size(envelope, call.task.name, "the request", limit)
        return envelope

    def lost(self) -> ft.Failure:
        """What it ends with when nobody can tell what became of it."""
        who = f"worker {self.worker}" if self.worker else "the worker"
        return ft.Failure.from_exception(
            exc.WorkerLost(
                f"{who} was lost while it ran task {self.invocation.task.name!r}"
                f" ({self.invocation.action}); whether the task took effect is unknown"
            )
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
        entry.leave()
        self._rows.setdefault(key, {})[entry.id] = entry
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

    def get(self, key: str) -> list[Entry]:
        """The entries under `key`, which may then be moved."""
        return list(self._rows.get(key, {}).values())

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
        heapq.heappush(self._heaps.setdefault(key, []), (entry.place, next(self._order), entry))

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
        self._reached: dict[str, tuple[Place, float]] = {}

    def remove(self, entry: Entry) -> None:
        super().remove(entry)
        if entry.key not in self._rows:
            self._reached.pop(entry.key, None)

    def serve(self, entry: Entry, now: float) -> None:
        """An entry that stands here was taken."""
        before = self._reached.get(entry.key)
        place = entry.place if before is None else max(entry.place, before[0])
        self._reached[entry.key] = (place, now)
        self.remove(entry)

    def approaches(self, entry: Entry) -> bool:
        """Whether the line has moved while `entry` stood in it, and not past it."""
        reached = self._reached.get(entry.key)
        return reached is not None and reached[0] < entry.place and reached[1] > entry.request.since


class Alarms:
    """A heap of times.  An alarm means something only as long as its request has not started, or
    nobody knows whether whoever runs it answers here.
    """

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, Entry]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at: float, kind: str, entry: Entry) -> None:
        heapq.heappush(self._heap, (at, next(self._order), kind, entry))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[str, Entry]]:
        """What is due, including what is set to a past time meanwhile; O(log n) each."""
        while self._heap and self._heap[0][0] <= now:
            _, _, kind, entry = heapq.heappop(self._heap)
            if _means(entry):
                yield kind, entry

    def tidy(self, entries: int) -> None:
        """Let go of what has ended; there are `entries` requests.  O(1) amortised."""
        if not entries:
            self._heap.clear()
        elif len(self._heap) > 2 * entries + _STALE_ALARMS:
            self._heap = [alarm for alarm in self._heap if _means(alarm[3])]
            heapq.heapify(self._heap)


def _means(entry: Entry) -> bool:
    return entry.live and (entry.state in pr.WAITING_STATES or entry.doubts > 0)
