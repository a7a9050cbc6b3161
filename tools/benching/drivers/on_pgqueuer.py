"""PgQueuer: jobs are enqueued in one statement. It returns no results; see `completions`.

Its batch is at most half of the jobs that run at a time. With the variant `batches`, batches are
larger and any number of jobs runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import completions
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


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """Yield the worker. Its jobs use connections of their own, one for each slot."""
    connection = await asyncpg.connect(place.URL)
    pool = await asyncpg.create_pool(place.URL, min_size=1, max_size=place.SLOTS)
    application = PgQueuer.from_asyncpg_connection(connection)

    def add(name: str) -> None:
        statement, value_of = completions.TASKS[name]
        insert = statement.format("$1", "$2")

        @application.entrypoint(name)
        async def run(job: Job) -> None:
            assert job.payload is not None
            number, argument = json.loads(job.payload)
            await pool.execute(insert, number, value_of(argument))

    for name in completions.TASKS:
        add(name)
    async with pool:
        yield application
    await connection.close()


class Driver(completions.Driver):
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._wait(asyncpg.connect(place.URL))
        self._queries = Queries.from_asyncpg_connection(self._connection)
        self._wait(self._queries.install())
        self._wait(self._queries.optimize_autovacuum())
        super().__init__()
        self._workers = place.Workers(["on_pgqueuer.py"])

    def _send(self, task: str, number: int, argument: Any) -> None:
        self._wait(self._queries.enqueue(task, json.dumps([number, argument]).encode()))

    def _send_all(self, task: str, arguments: Sequence[Any]) -> None:
        bodies: list[bytes | None] = [json.dumps(each).encode() for each in enumerate(arguments)]
        self._wait(self._queries.enqueue([task] * len(bodies), bodies, [0] * len(bodies)))

    def _wait(self, call: Any) -> Any:
        return self._loop.run_until_complete(call)

    def close(self) -> None:
        self._workers.close()
        super().close()
        self._wait(self._connection.close())


if __name__ == "__main__":
    uvloop.run(pgqueuer.run(worker, **LIMITS))
