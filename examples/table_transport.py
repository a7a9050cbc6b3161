"""A transport whose queues are rows of SQLite tables: `table:///PATH`.

It is the example of the page "Write a transport". Its connections poll. A connection that reported
nothing for `dead_after` seconds is dead: the next one that polls requeues its messages. Its owned
queues are deleted ten minutes later, unless their process declared them again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

from wbengine.engines.worker_based.ledger import open_ledger
from wbengine.exceptions import TransportFailure
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

#: Time in which a process can connect and declare its owned queues again.
OWNED_QUEUE_SECONDS = 600

TABLES = """
CREATE TABLE IF NOT EXISTS connection(id TEXT PRIMARY KEY, seen);
CREATE TABLE IF NOT EXISTS queue(name TEXT PRIMARY KEY, owner);
CREATE TABLE IF NOT EXISTS binding(exchange, key, queue, UNIQUE(exchange, key, queue));
CREATE TABLE IF NOT EXISTS message(n INTEGER PRIMARY KEY, queue, place, data, owner, again);
"""


class TableBroker(Broker):
    """A connection to the queues in one file."""

    def __init__(self, path: str, poll_seconds: float, dead_after: float) -> None:
        super().__init__()
        self._id = uuid4().hex
        self._poll_seconds = poll_seconds
        self._dead_after = dead_after
        self._report_at = 0.0
        self._woken_up = threading.Event()
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._watched: list[str] = []
        self._closed = False
        try:
            self._database.executescript("PRAGMA journal_mode = WAL;" + TABLES)
        except sqlite3.Error as error:
            self._database.close()
            raise TransportFailure(f"the broker at {path} cannot be used: {error}") from error
        self._report()

    def _run(self, statement: str, *values: Any) -> tuple[list[Any], int]:
        """Execute a statement. Return its rows, and the number of changed rows."""
        try:
            with self._lock:
                cursor = self._database.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
        except sqlite3.Error as error:  # The statement changed nothing.
            raise TransportFailure(f"the table broker failed: {error}") from error

    def _read(self, statement: str, *values: Any) -> list[Any]:
        return self._run(statement, *values)[0]

    def _write(self, statement: str, *values: Any) -> int:
        return self._run(statement, *values)[1]

    def _report(self) -> None:
        """Report that this connection is alive, and remove dead ones, once per second."""
        now = time.time()
        if now < self._report_at:
            return
        self._report_at = now + min(1.0, self._dead_after / 3)
        self._write("INSERT OR REPLACE INTO connection VALUES (?, ?)", self._id, now)
        silent = "SELECT id, seen FROM connection WHERE seen < ?"
        for dead, seen in self._read(silent, now - self._dead_after):
            self._requeue_all(dead)
            if seen > now - self._dead_after - OWNED_QUEUE_SECONDS:
                continue
            owned = "SELECT name FROM queue WHERE owner = ?"
            for (queue,) in self._read(owned, dead):
                self.delete_queue(queue)
            self._write("DELETE FROM connection WHERE id = ?", dead)

    def _requeue_all(self, connection: str) -> None:
        self._write("UPDATE message SET owner = NULL, again = 1 WHERE owner = ?", connection)

    def declare_exchange(self, name: str) -> None:
        check_label("exchange", name)

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        check_label("queue", queue)
        self._write(
            "INSERT INTO queue VALUES (?, ?) ON CONFLICT DO UPDATE SET owner = excluded.owner",
            queue, self._id if owned else None,
        )  # fmt: skip

    def delete_queue(self, queue: str) -> int:
        self._write("DELETE FROM binding WHERE queue = ?", queue)
        self._write("DELETE FROM queue WHERE name = ?", queue)
        waiting = self.purge(queue)
        self._write("DELETE FROM message WHERE queue = ?", queue)
        return waiting

    def purge(self, queue: str) -> int:
        return self._write("DELETE FROM message WHERE queue = ? AND owner IS NULL", queue)

    def size(self, queue: str) -> int:
        waiting = "SELECT count(*) FROM message WHERE queue = ? AND owner IS NULL"
        return int(self._read(waiting, queue)[0][0])

    def bind(self, exchange: str, key: str, queue: str) -> None:
        self._write("INSERT OR IGNORE INTO binding VALUES (?, ?, ?)", exchange, key, queue)

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        same = "exchange = ? AND key = ? AND queue = ?"
        self._write(f"DELETE FROM binding WHERE {same}", exchange, key, queue)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return self._read("SELECT queue, exchange, key FROM binding")

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        for frame in frames:
            queues: Iterable[str] = (frame.routing_key,)
            if frame.exchange:
                bound = "SELECT key, queue FROM binding WHERE exchange = ?"
                table = RoutingTable(self._read(bound, frame.exchange))
                queues = table.route(frame.routing_key)
            data = frame.head + frame.body
            insert = (
                "INSERT INTO message SELECT NULL, name, ?, ?, NULL, 0 FROM queue WHERE name = ?"
            )
            yield sum(self._write(insert, -frame.priority, data, q) for q in queues) > 0

    def watch(self, queue: str) -> None:
        self._watched.append(queue)

    def unwatch(self, queue: str) -> None:
        self._watched.remove(queue)

    def refresh(self) -> int:
        self._report()
        return sum(map(self.size, self._watched))

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        take = (
            "UPDATE message SET owner = ? WHERE n = (SELECT n FROM message WHERE queue = ?"
            " AND owner IS NULL ORDER BY place, n LIMIT 1) RETURNING n, data, again"
        )
        for group, (_, queues) in enumerate(groups):
            for queue in queues:
                for n, data, again in self._read(take, self._id, queue):
                    return [(group, Delivery(queue, n, data, bool(again)))]
        return []

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        delete = "DELETE FROM message WHERE n = ? AND owner = ?"
        counts = [self._write(delete, each.token, self._id) for each in deliveries]
        return all(counts)

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        free = "UPDATE message SET owner = NULL, again = again OR ? WHERE n = ? AND owner = ?"
        self._write(free, delivered, delivery.token, self._id)

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
            try:
                self._requeue_all(self._id)
            finally:
                self._database.close()


@dataclass(frozen=True)
class Options:
    """Options of the transport."""

    poll_seconds: float = option(0.05, "Seconds between two polls.")
    dead_after: float = option(10.0, "Seconds of silence after which a connection is dead.")


def ledger_of(target: Target, role: str, result_ttl: float | None) -> Any:
    """Open the ledger of a broker, in a file of its own."""
    return open_ledger(f"sqlite:///{quote(target.place)}-ledger", role, result_ttl)


class TableKind(BrokerKind):
    """The kind that the entry point names. The place is the path of the file."""

    name = "table"
    options = Options
    is_local = True
    ledger = f"{__name__}:ledger_of"

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        check_options(self, options)
        for name, value in options.items():
            if not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"{name} must be a number of seconds, got {value!r}")
        if not str(url).partition("://")[2]:
            raise ValueError(f"the URL must be table:///PATH, got {url!r}")
        return Target(url, self.name, self, options)

    def place(self, target: Target) -> str:
        return unquote(str(target.url).partition("://")[2])

    def open(self, target: Target) -> Broker:
        options = Options(**target.options)
        return TableBroker(self.place(target), options.poll_seconds, options.dead_after)


KIND = TableKind()
