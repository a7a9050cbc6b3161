"""Transport inside one process: `memory://NAME`.

The name identifies the broker. When its last connection closes, its messages are deleted. Messages
are encoded as for other transports, so that no objects are shared by accident, and headers that are
not JSON are rejected.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import exceptions
from wbengine._concurrency import conditions
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine.transports import _encoding, _routing
from wbengine.transports._broker import Broker, Delivery, Finish, Frame
from wbengine.transports._kinds import BrokerKind, Target, check_options
from wbengine.transports._ledger import ROW_DONE, Opening, RowAccess

#: (9 - priority, sequence number, data, redelivered)
_Entry = tuple[int, int, bytes, bool]


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


class Hub:
    """Queues, exchanges and bindings of one broker, guarded by `lock`.

    All users of this broker share `ledger`, which the first user sets under `lock`. `gate` is a
    hook for tests: it is called with each message (queue, priority, data), and if it returns True,
    the message is not stored.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.queues: dict[str, _Queue] = {}
        self.exchanges: dict[str, _Exchange] = {}
        self.message_numbers = itertools.count()
        self.connections = 0
        self.ledger: Any = None
        self.gate: Callable[[str, int, bytes], bool] | None = None


_hubs: dict[str, Hub] = {}
_hubs_lock = threading.Lock()


def hub(name: str = "default") -> Hub:
    with _hubs_lock:
        return _find(name)


def _find(name: str) -> Hub:
    existing = _hubs.get(name)
    if existing is None:
        existing = _hubs[name] = Hub(name)
    return existing


def _connect(name: str) -> Hub:
    with _hubs_lock:
        target = _find(name)
        target.connections += 1
        return target


def _disconnect(target: Hub) -> None:
    with _hubs_lock:
        target.connections -= 1
        if target.connections == 0 and _hubs.get(target.name) is target:
            del _hubs[target.name]


class MemoryBroker(Broker):
    labels = True

    def __init__(self, name: str, rows: RowAccess | None = None) -> None:
        super().__init__()
        self._rows = rows or RowAccess()
        self.hub = _connect(name)
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
            self._rows.ledger.open_many([(row.id, row.epoch, row.fence) for row in rows])
            return [self._publish(frame) for frame in frames]

    def _finish(
        self, batch: Sequence[Finish], take_order: None
    ) -> tuple[Sequence[bool], Sequence[Delivery]]:
        ledger, finished = self._rows.ledger, []
        with self._lock:
            for id, epoch, delivery, reply in batch:
                is_own = ledger.finish(id, epoch, self._rows.holder, reply.head + reply.body)
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
        ledger, holder = self._rows.ledger, self._rows.holder
        row = _encoding.row_of(label, ledger.digest) if holder and label else None
        if row is not None:
            delivery.label, delivery.taken_at = label, time.monotonic()
            delivery.claim = ledger.claim(*row, holder)
        return delivery

    def _unclaim(self, delivery: Delivery) -> None:
        """Undo the claim of an undelivered message, so that its next consumer can claim the row."""
        claim, delivery.claim = delivery.claim, None
        if claim is not None and claim.granted:
            id, epoch = delivery.label[1:].split(b" ")[:2]
            self._rows.ledger.release(id.decode(), int(epoch), self._rows.holder)

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

    def discard(self, delivery: Delivery, why: str) -> None:
        self.warn_discarded(delivery, why)
        self.refuse(delivery)

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
    ledger = "wbengine.transports._memory.memory_ledger:of_broker"
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


KIND: Final = MemoryKind()
