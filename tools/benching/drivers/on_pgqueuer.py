"""PgQueuer: jobs are enqueued in one statement. It returns no results; see `completions`.

Its batch is at most half of the jobs that run at a time. With the variant `batches`, batches are
larger and any number of jobs runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import completions
import payloads
import pgqueuer
import place
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

PACKAGES = ["pgqueuer", "asyncpg", "uvloop"]
#: The default is ten without a limit. PgQueuer recommends larger batches for short jobs.
LIMITS: dict[str, Any] = (
    {"batch_size": 100}
    if place.VARIANT == "batches"
    else {"batch_size": place.SLOTS // 2, "max_concurrent_tasks": place.SLOTS}
)
INSERT, INSERT_AND_NOTIFY = (
    statement.format("$1", "$2")
    for statement in (completions.INSERT, completions.INSERT_AND_NOTIFY)
)


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """Yield the worker. Its jobs use connections of their own, one for each slot."""
    connection = await asyncpg.connect(place.URL)
    pool = await asyncpg.create_pool(place.URL, min_size=1, max_size=place.SLOTS)
    application = PgQueuer.from_asyncpg_connection(connection)

    async def complete(statement: str, number: int, value: str | None) -> None:
        await pool.execute(statement, number, value)

    @application.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        number, _ = _arguments(job)
        await complete(INSERT, number, None)

    @application.entrypoint("next")
    async def next_(job: Job) -> None:
        number, x = _arguments(job)
        await complete(INSERT_AND_NOTIFY, number, str(x + 1))

    @application.entrypoint("back")
    async def back(job: Job) -> None:
        number, x = _arguments(job)
        await complete(INSERT, number, x)

    @application.entrypoint("delay")
    async def delay(job: Job) -> None:
        number, sent = _arguments(job)
        await complete(INSERT_AND_NOTIFY, number, str(time.time() - sent))

    async with pool:
        yield application
    await connection.close()


def _arguments(job: Job) -> Any:
    assert job.payload is not None
    return json.loads(job.payload)


class Driver:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._wait(asyncpg.connect(place.URL))
        self._queries = Queries.from_asyncpg_connection(self._connection)
        self._wait(self._queries.install())
        self._wait(self._queries.optimize_autovacuum())
        self._completions = completions.Completions()
        self._workers = place.Workers(["on_pgqueuer.py"])

    def wide(self, tasks: int) -> None:
        self._all("nothing", [None] * tasks)

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
        place.check(self._all("back", sent), sent)

    def latency(self, tasks: int) -> list[float]:
        for number in range(tasks):
            self._send("delay", number, time.time())
            self._completions.next_value()
        return [float(value) for value in self._completions.take(tasks)]

    def _send(self, name: str, number: int, argument: Any) -> None:
        self._wait(self._queries.enqueue(name, json.dumps([number, argument]).encode()))

    def _all(self, name: str, arguments: list[Any]) -> list[str]:
        tasks = len(arguments)
        bodies: list[bytes | None] = [json.dumps(each).encode() for each in enumerate(arguments)]
        self._wait(self._queries.enqueue([name] * tasks, bodies, [0] * tasks))
        return self._completions.wait(tasks)

    def _wait(self, call: Any) -> Any:
        return self._loop.run_until_complete(call)

    def close(self) -> None:
        self._workers.close()
        self._completions.close()
        self._wait(self._connection.close())


if __name__ == "__main__":
    uvloop.run(pgqueuer.run(worker, **LIMITS))
