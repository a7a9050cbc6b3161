"""Transport inside one process: `memory://NAME`.

Brokers are found by name.  What a broker holds is dropped when the last connection to it closes.
Messages are laid out in bytes as by the other transports, so nothing is shared by accident and a
header that is not JSON is refused here too.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wbengine.transports import _base, _routing
from wbengine.transports._store import Store, Taken, check_label

LOG = logging.getLogger(__name__)

#: (9 - priority, running number, data, redelivered)
_Entry = tuple[int, int, bytes, bool]


class _Queue:
    __slots__ = ("entries", "watchers")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.watchers: set[MemoryStore] = set()


class _Exchange:
    __slots__ = ("bindings", "kind", "table")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.bindings: dict[tuple[str, str], None] = {}
        self.table: _routing.Table | None = None


class Broker:
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


_brokers: dict[str, Broker] = {}
_brokers_lock = threading.Lock()


def broker(name: str = "default") -> Broker:
    """The broker of this name, made when it is not there."""
    with _brokers_lock:
        return _find(name)


def _find(name: str) -> Broker:
    found = _brokers.get(name)
    if found is None:
        found = _brokers[name] = Broker(name)
    return found


def _connect(name: str) -> Broker:
    with _brokers_lock:
        found = _find(name)
        found.connections += 1
        return found


def _disconnect(left: Broker) -> None:
    with _brokers_lock:
        left.connections -= 1
        if left.connections == 0 and _brokers.get(left.name) is left:
            del _brokers[left.name]


class MemoryStore(Store):
    """One connection's view of a broker."""

    def __init__(self, name: str) -> None:
        self.broker = _connect(name)
        self._lock = self.broker.lock
        self._signal = threading.Event()
        self._watched: dict[str, int] = {}
        self._closed = False

    # -- exchanges and queues

    def declare_exchange(self, name: str, kind: str) -> None:
        with self._lock:
            self.broker.exchanges.setdefault(name, _Exchange(kind))

    def exchange_kind(self, name: str) -> str | None:
        found = self.broker.exchanges.get(name)
        return None if found is None else found.kind

    def delete_exchange(self, name: str) -> None:
        with self._lock:
            self.broker.exchanges.pop(name, None)

    def declare_queue(self, queue: str) -> None:
        with self._lock:
            if queue not in self.broker.queues:
                made = self.broker.queues[queue] = _Queue()
                if queue in self._watched:
                    made.watchers.add(self)

    def has_queue(self, queue: str) -> bool:
        return queue in self.broker.queues

    def delete_queue(self, queue: str) -> int:
        with self._lock:
            gone = self.broker.queues.pop(queue, None)
            for exchange in self.broker.exchanges.values():
                for binding in [b for b in exchange.bindings if b[1] == queue]:
                    del exchange.bindings[binding]
                    exchange.table = None
            return 0 if gone is None else len(gone.entries)

    def purge(self, queue: str) -> int:
        with self._lock:
            found = self.broker.queues.get(queue)
            if found is None:
                return 0
            count = len(found.entries)
            found.entries.clear()
            return count

    def size(self, queue: str) -> int:
        found = self.broker.queues.get(queue)
        return 0 if found is None else len(found.entries)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        with self._lock:
            found = self.broker.exchanges[exchange]
            found.bindings[(key, queue)] = None
            found.table = None

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        with self._lock:
            found = self.broker.exchanges.get(exchange)
            if found is not None and found.bindings.pop((key, queue), self) is not self:
                found.table = None

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        with self._lock:
            return [
                (queue, name, key)
                for name, exchange in self.broker.exchanges.items()
                for key, queue in exchange.bindings
            ]

    def route(self, exchange: str, key: str) -> Sequence[str]:
        with self._lock:
            found = self.broker.exchanges.get(exchange)
            if found is None:
                return ()
            if found.table is None:
                found.table = _routing.Table(found.kind, found.bindings)
            return found.table.route(key)

    # -- messages

    def put(self, queue: str, priority: int, data: bytes) -> bool:
        with self._lock:
            found = self.broker.queues.get(queue)
            if found is None:
                return False
            gate = self.broker.gate
            if gate is None or not gate(queue, priority, data):
                self._push(found, (9 - priority, next(self.broker.numbers), data, False))
            return True

    @staticmethod
    def _push(queue: _Queue, entry: _Entry) -> None:
        heapq.heappush(queue.entries, entry)
        for watcher in queue.watchers:
            watcher.nudge()

    def watch(self, queue: str) -> None:
        with self._lock:
            self._watched[queue] = self._watched.get(queue, 0) + 1
            found = self.broker.queues.get(queue)
            if found is not None:
                found.watchers.add(self)

    def unwatch(self, queue: str) -> None:
        with self._lock:
            left = self._watched.get(queue, 0) - 1
            if left > 0:
                self._watched[queue] = left
                return
            self._watched.pop(queue, None)
            found = self.broker.queues.get(queue)
            if found is not None:
                found.watchers.discard(self)

    def refresh(self) -> int:
        # Cleared before looking: what comes in from here on sets it again, so no `wait` misses it.
        self._signal.clear()
        with self._lock:
            queues = self.broker.queues
            return sum(len(queues[name].entries) for name in self._watched if name in queues)

    def take(self, queue: str) -> Taken | None:
        with self._lock:
            found = self.broker.queues.get(queue)
            if found is None or not found.entries:
                return None
            entry = heapq.heappop(found.entries)
        return Taken(queue, entry, entry[2], entry[3])

    def settle(self, taken: Taken) -> bool:
        return not self._closed

    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        before, number, data, again = taken.token
        with self._lock:
            found = self.broker.queues.get(taken.queue)
            if found is not None:
                self._push(found, (before, number, data, again or delivered))

    def discard(self, taken: Taken, why: str) -> None:
        LOG.warning("a message in queue %s was put aside: %s", taken.queue, why)

    # -- waiting

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
            for queue in self.broker.queues.values():
                queue.watchers.discard(self)
        _disconnect(self.broker)


class Transport(_base.Transport):
    """kombu transport over a named broker of this process."""

    driver_type = "memory"
    driver_name = "wbengine-memory"
    #: Kept for programs that were written for kombu's: here no time passes between two looks.
    known_options = ("polling_interval",)

    def open_store(self) -> MemoryStore:
        """Connect to the broker that the URL names."""
        return MemoryStore(broker_name(self.client.hostname))


def broker_name(url: str | None) -> str:
    """The broker's name in `memory://NAME`; 'default' when the URL names none."""
    scheme, mark, rest = (url or "").partition("://")
    if not mark or scheme != "memory":
        return "default"
    return check_label("memory broker", rest.strip("/") or "default")
