"""Procrastinate: jobs are deferred in one statement. It returns no results; see `completions`."""

from __future__ import annotations

import time
from typing import Any

import completions
import payloads
import place
from procrastinate import App, PsycopgConnector

PACKAGES = ["procrastinate", "psycopg", "psycopg-pool"]

#: The worker uses a connection for each slot and for itself; the default is four.
connector = PsycopgConnector(conninfo=place.URL, min_size=1, max_size=2 * place.SLOTS)
app = App(connector=connector)
INSERT, INSERT_AND_NOTIFY = (
    statement.format("%(number)s", "%(value)s")
    for statement in (completions.INSERT, completions.INSERT_AND_NOTIFY)
)


@app.task(name="nothing")
async def nothing(number: int) -> None:
    await connector.execute_query_async(INSERT, number=number, value=None)


@app.task(name="next")
async def next_(number: int, x: int) -> None:
    await connector.execute_query_async(INSERT_AND_NOTIFY, number=number, value=str(x + 1))


@app.task(name="back")
async def back(number: int, x: str) -> None:
    await connector.execute_query_async(INSERT, number=number, value=x)


@app.task(name="delay")
async def delay(number: int, sent: float) -> None:
    value = str(time.time() - sent)
    await connector.execute_query_async(INSERT_AND_NOTIFY, number=number, value=value)


class Driver:
    def __init__(self) -> None:
        app.open()
        app.schema_manager.apply_schema()
        self._completions = completions.Completions()
        self._workers = place.Workers(
            ["-m", "procrastinate", "--app", "on_procrastinate.app", "--log-level", "warning",
             "worker", "--concurrency", str(place.SLOTS)]
        )  # fmt: skip

    def wide(self, tasks: int) -> None:
        self._all(nothing, [{} for _ in range(tasks)])

    def chain(self, tasks: int) -> None:
        value = 0
        for number in range(tasks):
            next_.defer(number=number, x=value)
            value = int(self._completions.next_value())
        place.check(value, tasks)
        self._completions.take(tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(self._all(back, [{"x": text} for text in sent]), sent)

    def latency(self, tasks: int) -> list[float]:
        for number in range(tasks):
            delay.defer(number=number, sent=time.time())
            self._completions.next_value()
        return [float(value) for value in self._completions.take(tasks)]

    def _all(self, task: Any, arguments: list[dict[str, Any]]) -> list[str]:
        task.batch_defer(*({"number": number, **each} for number, each in enumerate(arguments)))
        return self._completions.wait(len(arguments))

    def close(self) -> None:
        self._workers.close()
        self._completions.close()
        app.close()
