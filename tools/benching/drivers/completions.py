"""The cases of systems that return no results: tasks write rows into a table of the same database.

The table is not logged, so that writing a row never waits for the disk.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any

import payloads
import place
import psycopg

TABLE = "CREATE UNLOGGED TABLE bench_completions (number integer, value text)"
#: Statements of tasks, with places for the number and the value. The second one notifies.
INSERT = "INSERT INTO bench_completions VALUES ({}, {})"
INSERT_AND_NOTIFY = (
    f"WITH done AS ({INSERT} RETURNING value)"
    " SELECT pg_notify('bench_completions', value) FROM done"
)
#: For each task: its statement, and its value for an argument.
TASKS: dict[str, tuple[str, Callable[[Any], str | None]]] = {
    "nothing": (INSERT, lambda _: None),
    "next": (INSERT_AND_NOTIFY, lambda number: str(number + 1)),
    "back": (INSERT, lambda text: text),
    "delay": (INSERT_AND_NOTIFY, lambda sent: str(time.time() - sent)),
}
#: Interval between two polls for many tasks.
POLL_SECONDS = 0.005


class Completions:
    """The caller's view of the table. A task that runs late fails the check of the next case."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(place.URL, autocommit=True)
        self._connection.execute(TABLE)
        self._connection.execute("LISTEN bench_completions")

    def next_value(self) -> str:
        """Wait for the value of the next notifying task."""
        for notification in self._connection.notifies(timeout=place.PATIENCE, stop_after=1):
            return notification.payload
        raise RuntimeError("the task did not complete")

    def wait(self, tasks: int) -> list[str]:
        """Wait for a number of tasks with the numbers from 0, and return their values in order."""
        deadline = time.monotonic() + place.PATIENCE
        while self._count() < tasks and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return self.take(tasks)

    def take(self, tasks: int) -> list[str]:
        """Return the values in order, and delete them.

        :raises RuntimeError: if a task did not run exactly once.
        """
        query = "SELECT number, value FROM bench_completions ORDER BY number"
        rows = self._connection.execute(query).fetchall()
        place.check([number for number, _ in rows], [*range(tasks)])
        self._connection.execute("TRUNCATE bench_completions")
        return [value for _, value in rows]

    def _count(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM bench_completions").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()


class Driver(abc.ABC):
    """A system whose workers run `TASKS`."""

    def __init__(self) -> None:
        self._completions = Completions()

    @abc.abstractmethod
    def _send(self, task: str, number: int, argument: Any) -> None:
        """Send one task."""

    @abc.abstractmethod
    def _send_all(self, task: str, arguments: Sequence[Any]) -> None:
        """Send tasks with the numbers from 0."""

    def wide(self, tasks: int) -> None:
        self._send_all("nothing", [None] * tasks)
        self._completions.wait(tasks)

    def chain(self, tasks: int) -> None:
        value = 0
        for number in range(tasks):
            self._send("next", number, value)
            value = int(self._completions.next_value())
        place.check(value, tasks)
        self._completions.take(tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        self._send_all("back", sent)
        place.check(self._completions.wait(tasks), sent)

    def latency(self, tasks: int) -> list[float]:
        for number in range(tasks):
            self._send("delay", number, time.time())
            self._completions.next_value()
        return [float(value) for value in self._completions.take(tasks)]

    def close(self) -> None:
        self._completions.close()
