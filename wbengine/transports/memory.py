"""Transport inside one process: `memory://NAME`.

Brokers are found by name.  What a broker holds is dropped when the last connection to it closes.
Messages are laid out in bytes as by the other transports, so nothing is shared by accident and a
header that is not JSON is refused here too.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from wbengine import _names, exceptions
from wbengine.transports import _routing
from wbengine.transports.broker import Broker, LaidOut, Taken

#: (9 - priority, running number, data, redelivered)
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
        self.table: _routing.Table | None = None


class Hub:
    """Queues, exchanges and bindings of one name; `lock` guards all of them.

    `ledger` is the ledger of those who talk through this broker; whoever opens it first puts it
    here (under `lock`), so that all of them share one.  `gate`, if there is one, is asked of each
    message that is put into a queue (queue, priority, data) whether somebody else sees to it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.queues: dict[str, _Queue] = {}
        self.exchanges: dict[str, _Exchange] = {}
        self.numbers = itertools.count()
        self.connections = 0
        self.ledger: Any = None
        self.gate: Callable[[str, int, bytes], bool] | None = None


_hubs: dict[str, Hub] = {}
_hubs_lock = threading.Lock()


def hub(name: str = "default") -> Hub:
    """The hub of this name, made when it is not there."""
    with _hubs_lock:
        return _find(name)


def _find(name: str) -> Hub:
    found = _hubs.get(name)
    if found is None:
        found = _hubs[name] = Hub(name)
    return found


def _connect(name: str) -> Hub:
    with _hubs_lock:
        found = _find(name)
        found.connections += 1
        return found


def _disconnect(left: Hub) -> None:
    with _hubs_lock:
        left.connections -= 1
        if left.connections == 0 and _hubs.get(left.name) is left:
            del _hubs[left.name]


class MemoryBroker(Broker):
    """One connection to a hub."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.hub = _connect(name)
        self._lock = self.hub.lock
        self._signal = threading.Event()
        self._watched: Counter[str] = Counter()
        self._closed = False

    # Declaring.

    def declare_exchange(self, name: str) -> None:
        _names.check_label("exchange", name)
        with self._lock:
            self.hub.exchanges.setdefault(name, _Exchange())

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        _names.check_label("queue", queue)
        with self._lock:
            if queue not in self.hub.queues:
                made = self.hub.queues[queue] = _Queue()
                if queue in self._watched:
                    made.watchers.add(self)

    def delete_queue(self, queue: str) -> int:
        with self._lock:
            gone = self.hub.queues.pop(queue, None)
            for exchange in self.hub.exchanges.values():
                for binding in [b for b in exchange.bindings if b[1] == queue]:
                    del exchange.bindings[binding]
                    exchange.table = None
            return 0 if gone is None else len(gone.entries)

    def purge(self, queue: str) -> int:
        with self._lock:
            count = self.size(queue)
            if count:
                self.hub.queues[queue].entries.clear()
            return count

    def size(self, queue: str) -> int:
        found = self.hub.queues.get(queue)
        return 0 if found is None else len(found.entries)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        with self._lock:
            found = self.hub.exchanges.get(exchange)
            if found is None:
                raise exceptions.TransportFailure(f"there is no exchange {exchange!r} any more")
            found.bindings[(key, queue)] = None
            found.table = None

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        with self._lock:
            found = self.hub.exchanges.get(exchange)
            if found is not None and found.bindings.pop((key, queue), self) is not self:
                found.table = None

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        with self._lock:
            return [
                (queue, name, key)
                for name, exchange in self.hub.exchanges.items()
                for key, queue in exchange.bindings
            ]

    # Publishing.

    def _route(self, exchange: str, key: str) -> Sequence[str]:
        if not exchange:
            return (key,)
        with self._lock:
            found = self.hub.exchanges.get(exchange)
            if found is None:
                return ()
            if found.table is None:
                found.table = _routing.Table(found.bindings)
            return found.table.route(key)

    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        for exchange, key, priority, head, body in messages:
            data = head + body
            yield sum(self.put(queue, priority, data) for queue in self._route(exchange, key)) > 0

    def put(self, queue: str, priority: int, data: bytes) -> bool:
        """Append to a queue; False when there is no such queue."""
        with self._lock:
            found = self.hub.queues.get(queue)
            if found is None:
                return False
            gate = self.hub.gate
            if gate is None or not gate(queue, priority, data):
                self._push(found, (9 - priority, next(self.hub.numbers), data, False))
            return True

    @staticmethod
    def _push(queue: _Queue, entry: _Entry) -> None:
        heapq.heappush(queue.entries, entry)
        for watcher in queue.watchers:
            watcher.nudge()

    # Taking.

    def watch(self, queue: str) -> None:
        with self._lock:
            self._watched[queue] += 1
            found = self.hub.queues.get(queue)
            if found is not None:
                found.watchers.add(self)

    def unwatch(self, queue: str) -> None:
        with self._lock:
            self._watched -= Counter((queue,))  # it forgets what is down to none
            found = self.hub.queues.get(queue)
            if found is not None and queue not in self._watched:
                found.watchers.discard(self)

    def refresh(self) -> int:
        # Cleared before looking: what comes in from here on sets it again, so no `wait` misses it.
        self._signal.clear()
        with self._lock:
            return sum(map(self.size, self._watched))

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        for group, (_, queues) in enumerate(groups):
            for queue in queues:
                with self._lock:
                    found = self.hub.queues.get(queue)
                    if found is not None and found.entries:
                        entry = heapq.heappop(found.entries)
                        return [(group, Taken(queue, entry, entry[2], entry[3]))]
        return []

    def settle_many(self, taken: Sequence[Taken]) -> bool:
        return not self._closed

    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        before, number, data, again = taken.token
        with self._lock:
            found = self.hub.queues.get(taken.queue)
            if found is not None:
                self._push(found, (before, number, data, again or delivered))

    def discard(self, taken: Taken, why: str) -> None:
        self.discards.tell(taken.queue, "a message in queue %s was put aside: %s", taken.queue, why)

    # Waiting.

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
            for queue in self.hub.queues.values():
                queue.watchers.discard(self)
        _disconnect(self.hub)


def hub_name(url: str | None) -> str:
    """The name of the hub in `memory://NAME`; 'default' when the URL names none."""
    scheme, mark, rest = (url or "").partition("://")
    if not mark or scheme != "memory":
        return "default"
    return _names.check_label("memory broker", rest.strip("/") or "default")
