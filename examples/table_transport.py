"""A transport whose queues are rows of an SQLite table: `table:///PATH`.

It is the example of the page "Write a transport". Its connections poll, and a killed process keeps
its messages: a transport for production requeues the messages of dead processes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from wbengine.transports import (
    Broker,
    BrokerKind,
    Delivery,
    Frame,
    RoutingTable,
    Target,
    check_label,
    check_options,
    option,
)

TABLES = """
CREATE TABLE IF NOT EXISTS queue(name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS binding(exchange, key, queue, UNIQUE(exchange, key, queue));
CREATE TABLE IF NOT EXISTS message(n INTEGER PRIMARY KEY, queue, place, data, owner, again);
"""


class TableBroker(Broker):
    """A connection to the queues in one file."""

    def __init__(self, path: str, poll_seconds: float) -> None:
        super().__init__()
        self._owner = uuid4().hex
        self._poll_seconds = poll_seconds
        self._woken_up = threading.Event()
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._database.executescript(TABLES)
        self._watched: list[str] = []
        self._closed = False

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        with self._lock:
            return self._database.execute(statement, values)

    def declare_exchange(self, name: str) -> None:
        check_label("exchange", name)

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        check_label("queue", queue)
        self._run("INSERT OR IGNORE INTO queue VALUES (?)", queue)

    def delete_queue(self, queue: str) -> int:
        self._run("DELETE FROM binding WHERE queue = ?", queue)
        self._run("DELETE FROM queue WHERE name = ?", queue)
        return self.purge(queue)

    def purge(self, queue: str) -> int:
        return self._run("DELETE FROM message WHERE queue = ? AND owner IS NULL", queue).rowcount

    def size(self, queue: str) -> int:
        waiting = "SELECT count(*) FROM message WHERE queue = ? AND owner IS NULL"
        return int(self._run(waiting, queue).fetchone()[0])

    def bind(self, exchange: str, key: str, queue: str) -> None:
        self._run("INSERT OR IGNORE INTO binding VALUES (?, ?, ?)", exchange, key, queue)

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        same = "exchange = ? AND key = ? AND queue = ?"
        self._run(f"DELETE FROM binding WHERE {same}", exchange, key, queue)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return self._run("SELECT queue, exchange, key FROM binding").fetchall()

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        for frame in frames:
            queues: Iterable[str] = (frame.routing_key,)
            if frame.exchange:
                bound = "SELECT key, queue FROM binding WHERE exchange = ?"
                table = RoutingTable(self._run(bound, frame.exchange))
                queues = table.route(frame.routing_key)
            data = frame.head + frame.body
            insert = (
                "INSERT INTO message SELECT NULL, name, ?, ?, NULL, 0 FROM queue WHERE name = ?"
            )
            yield sum(self._run(insert, -frame.priority, data, q).rowcount for q in queues) > 0

    def watch(self, queue: str) -> None:
        self._watched.append(queue)

    def unwatch(self, queue: str) -> None:
        self._watched.remove(queue)

    def refresh(self) -> int:
        return sum(map(self.size, self._watched))

    def take_many(
        self, groups: Sequence[tuple[int, Sequence[str]]]
    ) -> list[tuple[int, Delivery]]:
        take = (
            "UPDATE message SET owner = ? WHERE n = (SELECT n FROM message WHERE queue = ?"
            " AND owner IS NULL ORDER BY place, n LIMIT 1) RETURNING n, data, again"
        )
        for group, (_, queues) in enumerate(groups):
            for queue in queues:
                for n, data, again in self._run(take, self._owner, queue).fetchall():
                    return [(group, Delivery(queue, n, data, bool(again)))]
        return []

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        delete = "DELETE FROM message WHERE n = ? AND owner = ?"
        counts = [self._run(delete, each.token, self._owner).rowcount for each in deliveries]
        return all(counts)

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        free = "UPDATE message SET owner = NULL, again = again OR ? WHERE n = ? AND owner = ?"
        self._run(free, delivered, delivery.token, self._owner)

    def discard(self, delivery: Delivery, why: str) -> None:
        self.settle_many((delivery,))
        self.warn_discarded(delivery, why)

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        self._woken_up.wait(
            self._poll_seconds if timeout is None else min(timeout, self._poll_seconds)
        )
        self._woken_up.clear()

    def nudge(self) -> None:
        self._woken_up.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            free = "UPDATE message SET owner = NULL, again = 1 WHERE owner = ?"
            self._run(free, self._owner)
            self._database.close()


@dataclass(frozen=True)
class Options:
    """Options of the transport."""

    poll_seconds: float = option(0.05, "Seconds between two polls.")


class TableKind(BrokerKind):
    """The kind that the entry point names. The place is the path of the file."""

    name = "table"
    options = Options
    is_local = True

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        check_options(self, options)
        return Target(url, self.name, self, options)

    def place(self, target: Target) -> str:
        return unquote(str(target.url).partition("://")[2])

    def open(self, target: Target) -> Broker:
        return TableBroker(self.place(target), target.options.get("poll_seconds", 0.05))


KIND = TableKind()
