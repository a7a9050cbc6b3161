"""Procrastinate: jobs are deferred in one statement. It returns no results; see `completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import completions
import place
from procrastinate import App, PsycopgConnector

PACKAGES = ["procrastinate", "psycopg", "psycopg-pool"]

#: The worker uses a connection for each slot and for itself; the default is four.
connector = PsycopgConnector(conninfo=place.URL, min_size=1, max_size=2 * place.SLOTS)
app = App(connector=connector)


def _task(name: str) -> Any:
    statement, value_of = completions.TASKS[name]
    insert = statement.format("%(number)s", "%(value)s")

    @app.task(name=name)
    async def run(number: int, argument: Any) -> None:
        await connector.execute_query_async(insert, number=number, value=value_of(argument))

    return run


tasks = {name: _task(name) for name in completions.TASKS}


class Driver(completions.Driver):
    def __init__(self) -> None:
        app.open()
        app.schema_manager.apply_schema()
        super().__init__()
        self._workers = place.Workers(
            ["-m", "procrastinate", "--app", "on_procrastinate.app", "--log-level", "warning",
             "worker", "--concurrency", str(place.SLOTS)]
        )  # fmt: skip

    def _send(self, task: str, number: int, argument: Any) -> None:
        tasks[task].defer(number=number, argument=argument)

    def _send_all(self, task: str, arguments: Sequence[Any]) -> None:
        numbered = enumerate(arguments)
        tasks[task].batch_defer(*({"number": n, "argument": each} for n, each in numbered))

    def close(self) -> None:
        self._workers.close()
        super().close()
        app.close()
