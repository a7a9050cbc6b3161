"""Transport inside one process, with the ledger of its requests: `memory://NAME`.

The name identifies the broker. When its last connection closes, its messages are deleted. Its
ledger remains while an engine or worker uses it. Messages are encoded as for other transports, so
that no objects are shared by accident, and headers that are not JSON are rejected.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from wbengine import exceptions
from wbengine._concurrency import clocks, conditions
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine.transports import _encoding, _routing
from wbengine.transports._broker import Broker, Delivery, Finish, Frame
from wbengine.transports._kinds import BrokerKind, Target, check_options
from wbengine.transports._ledger import (
    GRANTED,
    MISSING,
    ROW_CLAIMED,
    ROW_DONE,
    ROW_OPEN,
    Claim,
    Fence,
    FencedRow,
    Ledger,
    Listed,
    Opening,
    Page,
    Row,
    RowAccess,
    refusal,
)

#: (9 - priority, sequence number, data, redelivered)
_Entry = tuple[int, int, bytes, bool]


class MemoryLedger(Ledger):
    """Rows in a dict. Each call holds one lock for a few microseconds.

    :param lock: the lock of a broker, which holds it while it changes rows together with messages.
    """

    def __init__(
        self,
        clock: clocks.Clock = clocks.SYSTEM,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._clock = clock
        self._digest = f"memory-{os.getpid()}-{uuid.uuid4().hex}"
        self._lock = lock or threading.Lock()
        self._rows: dict[str, Row] = {}
        # Time of the last change of each row.
        self._changed: dict[str, float] = {}
        self._heartbeats: dict[str, float] = {}

    @property
    def digest(self) -> str:
        return self._digest

    def refuses(self, fence: Fence) -> bool:
        """Return whether calls with this fence have no effect. The caller holds the lock."""
        raised = self._rows.get(fence.id)
        return raised is not None and raised.epoch > fence.number

    def _open(self, rows: Sequence[FencedRow[int]]) -> None:
        with self._lock:
            for id, epoch, fence in rows:
                row = self._rows.get(id)
                is_new = row is None or (row.state == ROW_OPEN and row.epoch < epoch)
                if is_new and not self.refuses(fence):
                    self._put(Row(id, epoch, ROW_OPEN))

    def _reopen(self, id: str, epoch: int, fence: Fence) -> bytes | exceptions.NotFound | None:
        with self._lock:
            row = self._rows.get(id)
            if row is None:
                return exceptions.NotFound(f"request {id} has no row in ledger {self.digest}")
            if row.epoch < epoch and row.state != ROW_DONE and not self.refuses(fence):
                self._put(Row(id, epoch, ROW_OPEN))
            return row.result

    def _revoke(
        self, rows: Sequence[FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        with self._lock:
            return [self._revoke_one(*row) for row in rows]

    def _revoke_one(self, id: str, epoch: int | None, fence: Fence) -> bool:
        row = self._rows.get(id)
        if row is None or row.state != ROW_OPEN or (epoch is not None and row.epoch > epoch):
            return False
        if self.refuses(fence):
            return False
        self._remove(id)
        return True

    def _drop(self, ids: Sequence[str]) -> None:
        with self._lock:
            for id in ids:
                self._remove(id)

    def _claim(self, id: str, epoch: int, holder: str) -> Claim:
        with self._lock:
            row = self._rows.get(id)
            if row != Row(id, epoch, ROW_OPEN):
                return refusal(row, epoch) or Claim(MISSING, epoch)
            self._put(Row(id, epoch, ROW_CLAIMED, holder))
            self._heartbeats[holder] = self._changed[id]
            return Claim(GRANTED, epoch, None, holder)

    def _renew(self, holder: str) -> None:
        with self._lock:
            self._heartbeats[holder] = self._clock.monotonic()

    def _silence(self, holder: str) -> float | None:
        with self._lock:
            beat = self._heartbeats.get(holder)
            return None if beat is None else self._clock.monotonic() - beat

    def _finish(
        self, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: Fence
    ) -> list[bool | exceptions.LedgerFailure]:
        results: list[bool | exceptions.LedgerFailure] = []
        with self._lock:
            for id, epoch, result in finished_rows:
                is_owner = self._rows.get(id) == Row(id, epoch, ROW_CLAIMED, holder)
                if is_owner and fence.id:
                    is_owner = not self.refuses(fence)
                if is_owner:
                    self._put(Row(id, epoch, ROW_DONE, None, result))
                results.append(is_owner)
        return results

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        with self._lock:
            if self._rows.get(id) != Row(id, epoch, ROW_CLAIMED, holder):
                return False
            self._put(Row(id, epoch, ROW_OPEN))
            return True

    def _states(self, ids: Sequence[str]) -> list[Row | exceptions.LedgerFailure | None]:
        with self._lock:
            return [self._rows.get(id) for id in ids]

    def _ids(self) -> set[str]:
        with self._lock:
            return set(self._rows)

    def _list_rows(self, limit: int, after: str | None) -> Page:
        with self._lock:
            ids = heapq.nsmallest(limit + 1, (id for id in self._rows if id > (after or "")))
            now = self._clock.monotonic()
            rows = [
                Listed(row.id, row.epoch, row.state, row.holder, now - self._changed[row.id])
                for row in map(self._rows.__getitem__, ids[:limit])
            ]
            return Page(rows, ids[limit - 1] if len(ids) > limit else None)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        with self._lock:
            cutoff = self._clock.monotonic() - older_than
            old = [
                id
                for id, row in self._rows.items()
                if self._changed[id] <= cutoff
                and (row.state == ROW_DONE or not only_done)
                and (row.holder is None or self._heartbeats.get(row.holder, cutoff) <= cutoff)
            ]
            for id in old:
                self._remove(id)
            holders = {row.holder for row in self._rows.values()}
            for holder in [h for h, beat in self._heartbeats.items() if beat <= cutoff]:
                if holder not in holders:
                    del self._heartbeats[holder]
            return len(old)

    def _put(self, row: Row) -> None:
        self._rows[row.id] = row
        self._changed[row.id] = self._clock.monotonic()

    def _remove(self, id: str) -> None:
        self._rows.pop(id, None)
        self._changed.pop(id, None)


class _Queue:
    __slots__ = ("entries", "watchers")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.watchers: set[MemoryBroker] = set()


class _Exchange:
    __slots__ = ("bindings", "table")

    def __init__(self) -> None:
        self.bindings: dict[tuple[str, str], None] = {}
        self.table: _routing.RoutingTable | None = None


class Hub(MemoryLedger):
    """Queues, exchanges and bindings of one broker, which is also its ledger. `lock` guards both.

    `gate` is a hook for tests: it is called with each message (queue, priority, data), and if it
    returns True, the message is not stored.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(lock=self.lock)
        self.queues: dict[str, _Queue] = {}
        self.exchanges: dict[str, _Exchange] = {}
        self.message_numbers = itertools.count()
        self.connections = 0
        self.gate: Callable[[str, int, bytes], bool] | None = None


# A process opens its ledger before its connections.
_hubs: Final[weakref.WeakValueDictionary[str, Hub]] = weakref.WeakValueDictionary()
_hubs_lock = threading.Lock()


def hub(name: str = "default", connections: int = 0) -> Hub:
    """Return the hub with this name, and add connections to it. Create it if necessary."""
    with _hubs_lock:
        target = _hubs.get(name)
        if target is None:
            target = _hubs[name] = Hub()
        target.connections += connections
        return target


def _disconnect(target: Hub) -> None:
    with _hubs_lock:
        target.connections -= 1
        if target.connections == 0:
            with target.lock:
                target.queues.clear()
                target.exchanges.clear()


class MemoryBroker(Broker):
    labels = True

    def __init__(self, name: str, rows: RowAccess | None = None) -> None:
        super().__init__()
        self._holder = rows.holder if rows is not None else ""
        self.hub = hub(name, connections=1)
        self._lock = self.hub.lock
        self._signal = conditions.Event()
        self._watched_queues: Counter[str] = Counter()
        # Unsettled messages by number, guarded by the lock.
        self._taken: dict[int, Delivery] = {}
        self._closed = False

    def declare_exchange(self, name: str) -> None:
        object_names.check_label("exchange", name)
        with self._lock:
            self.hub.exchanges.setdefault(name, _Exchange())

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        object_names.check_label("queue", queue)
        with self._lock:
            if queue not in self.hub.queues:
                new_queue = self.hub.queues[queue] = _Queue()
                if queue in self._watched_queues:
                    new_queue.watchers.add(self)

    def delete_queue(self, queue: str) -> int:
        with self._lock:
            deleted = self.hub.queues.pop(queue, None)
            for exchange in self.hub.exchanges.values():
                for binding in [b for b in exchange.bindings if b[1] == queue]:
                    del exchange.bindings[binding]
                    exchange.table = None
            return 0 if deleted is None else len(deleted.entries)

    def purge(self, queue: str) -> int:
        with self._lock:
            count = self.size(queue)
            if count:
                self.hub.queues[queue].entries.clear()
            return count

    def size(self, queue: str) -> int:
        existing = self.hub.queues.get(queue)
        return 0 if existing is None else len(existing.entries)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        with self._lock:
            target = self.hub.exchanges.get(exchange)
            if target is None:
                raise exceptions.TransportFailure(f"exchange {exchange!r} does not exist")
            target.bindings[(key, queue)] = None
            target.table = None

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        with self._lock:
            target = self.hub.exchanges.get(exchange)
            if target is not None and target.bindings.pop((key, queue), self) is not self:
                target.table = None

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        with self._lock:
            return [
                (queue, name, key)
                for name, exchange in self.hub.exchanges.items()
                for key, queue in exchange.bindings
            ]

    def _route(self, exchange: str, key: str) -> Sequence[str]:
        if not exchange:
            return (key,)
        with self._lock:
            target = self.hub.exchanges.get(exchange)
            if target is None:
                return ()
            if target.table is None:
                target.table = _routing.RoutingTable(target.bindings)
            return target.table.route(key)

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        for frame in frames:
            yield self._publish(frame) > 0

    def _publish(self, frame: Frame) -> int:
        data = frame.head + frame.body
        queues = self._route(frame.exchange, frame.routing_key)
        return sum(self.put(queue, frame.priority, data) for queue in queues)

    def open_and_publish(self, rows: Sequence[Opening], frames: Sequence[Frame]) -> list[int]:
        with self._lock:
            self.hub.open_many([(row.id, row.epoch, row.fence) for row in rows])
            return [
                0 if self.hub.refuses(row.fence) else self._publish(frame)
                for row, frame in zip(rows, frames, strict=True)
            ]

    def _finish(
        self, batch: Sequence[Finish], take_order: None
    ) -> tuple[Sequence[bool], Sequence[Delivery]]:
        ledger, finished = self.hub, []
        with self._lock:
            for id, epoch, delivery, reply in batch:
                is_own = ledger.finish(id, epoch, self._holder, reply.head + reply.body)
                if not is_own:
                    row = ledger.state(id)
                    is_own = row is None or (row.epoch, row.state) == (epoch, ROW_DONE)
                if is_own:
                    self._publish(reply)
                finished.append(is_own)
                if self._taken.get(delivery.token[1]) is delivery:
                    del self._taken[delivery.token[1]]
        return finished, ()

    def put(self, queue: str, priority: int, data: bytes) -> bool:
        """Append a message to a queue. Return False if the queue does not exist."""
        with self._lock:
            target = self.hub.queues.get(queue)
            if target is None:
                return False
            gate = self.hub.gate
            if gate is None or not gate(queue, priority, data):
                self._push(target, (9 - priority, next(self.hub.message_numbers), data, False))
            return True

    @staticmethod
    def _push(queue: _Queue, entry: _Entry) -> None:
        heapq.heappush(queue.entries, entry)
        for watcher in queue.watchers:
            watcher.nudge()

    def watch(self, queue: str) -> None:
        with self._lock:
            self._watched_queues[queue] += 1
            target = self.hub.queues.get(queue)
            if target is not None:
                target.watchers.add(self)

    def unwatch(self, queue: str) -> None:
        with self._lock:
            self._watched_queues -= Counter((queue,))  # This removes counts of zero.
            target = self.hub.queues.get(queue)
            if target is not None and queue not in self._watched_queues:
                target.watchers.discard(self)

    def refresh(self) -> int:
        # Cleared before counting, so that a message that arrives later ends the next `wait`.
        self._signal.clear()
        with self._lock:
            return sum(map(self.size, self._watched_queues))

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        for group, (_, queues) in enumerate(groups):
            for queue in queues:
                with self._lock:
                    target = self.hub.queues.get(queue)
                    if target is not None and target.entries:
                        return [(group, self._take(queue, heapq.heappop(target.entries)))]
        return []

    def _take(self, queue: str, entry: _Entry) -> Delivery:
        """Take a message, and claim the row of its request."""
        _, number, data, redelivered = entry
        label, data = _encoding.split(data)
        delivery = self._taken[number] = Delivery(queue, entry, data, redelivered)
        ledger = self.hub
        row = _encoding.row_of(label, ledger.digest) if self._holder and label else None
        if row is not None:
            delivery.label, delivery.taken_at = label, time.monotonic()
            delivery.claim = ledger.claim(*row, self._holder)
        return delivery

    def _unclaim(self, delivery: Delivery) -> None:
        """Undo the claim of an undelivered message, so that its next consumer can claim the row."""
        claim, delivery.claim = delivery.claim, None
        if claim is not None and claim.granted:
            id, epoch = delivery.label[1:].split(b" ")[:2]
            self.hub.release(id.decode(), int(epoch), self._holder)

    def refuse(self, delivery: Delivery) -> None:
        with self._lock:
            self._unclaim(delivery)
            self.settle_many((delivery,))

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        with self._lock:
            settled = [self._taken.pop(each.token[1], None) for each in deliveries]
        return None not in settled

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        before, number, data, redelivered = delivery.token
        with self._lock:
            if self._taken.pop(number, None) is None:
                return
            if not delivered:
                self._unclaim(delivery)
            target = self.hub.queues.get(delivery.queue)
            if target is not None:
                self._push(target, (before, number, data, redelivered or delivered))

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        self._signal.wait(timeout)

    def nudge(self) -> None:
        if not self._signal.is_set():
            self._signal.set()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for delivery in list(self._taken.values()):
                self.requeue(delivery)
            for queue in self.hub.queues.values():
                queue.watchers.discard(self)
        _disconnect(self.hub)


@dataclass(frozen=True)
class MemoryOptions:
    """Options of the transport."""

    polling_interval: float | None = named_options.option(
        None, "No effect; kombu's transport has it."
    )


class MemoryKind(BrokerKind):
    """Queues in the memory of this process. The place is the name of the hub."""

    name = "memory"
    options = MemoryOptions
    is_local = is_in_process = True
    ledger = "wbengine.transports._memory.memory_broker:of_broker"
    has_rows = True

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        check_options(self, options)
        return Target(f"memory://{hub_name(url)}", self.name, self)

    def place(self, target: Target) -> str:
        return hub_name(target.url)

    def open(self, target: Target) -> Broker:
        return MemoryBroker(self.place(target), target.rows)


def hub_name(url: str | None) -> str:
    """Return the name of the hub in `memory://NAME`, by default 'default'.

    :raises ValueError: if the name is invalid.
    """
    scheme, mark, rest = (url or "").partition("://")
    if not mark or scheme != "memory":
        return "default"
    return object_names.check_label("memory broker", rest.strip("/") or "default")


#: The place of a ledger is the URL of its broker.
check: Final = hub_name


def is_at(place: str, broker: object) -> bool:
    return hub_name(place) == broker


def open_place(place: str, result_ttl: float | None) -> Ledger:
    return hub(hub_name(place))


def of_broker(target: Target, role: str, result_ttl: float | None) -> Ledger:
    return hub(target.place)


KIND: Final = MemoryKind()
