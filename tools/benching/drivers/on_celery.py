"""Celery: groups, and chains as its pipelines.

With AMQP, results are sent through the broker (`rpc://`), otherwise they are stored in Redis or in
files. The variant is the pool of its worker: `prefork` or `threads`.
"""

from __future__ import annotations

from typing import Any

import payloads
import place
from celery import Celery, chain, group

PACKAGES = ["celery", "kombu"]


def _app() -> Celery:
    if place.MEDIUM == "redis":
        return Celery("bench", broker=place.URL, backend=place.URL)
    if place.MEDIUM == "amqp":
        return Celery("bench", broker=place.URL, backend="rpc://")
    results = place.FOLDER / "results"
    results.mkdir(exist_ok=True)
    application = Celery("bench", broker="filesystem://", backend=f"file://{results}")
    application.conf.broker_transport_options = place.folders()
    return application


app = _app()


@app.task(name="nothing")
def nothing() -> None:
    return None


@app.task(name="next")
def next_(x: int) -> int:
    return x + 1


@app.task(name="back")
def back(x: str) -> str:
    return x


#: Files are polled; the default interval is half a second.
WAIT: dict[str, Any] = {"timeout": place.PATIENCE}
if place.MEDIUM == "filesystem":
    WAIT["interval"] = 0.002


class Driver:
    def __init__(self) -> None:
        self._workers = place.Workers(
            ["-m", "celery", "-A", "on_celery", "worker", "--pool", place.VARIANT,
             "--concurrency", str(place.SLOTS)]
        )  # fmt: skip

    def wide(self, tasks: int) -> None:
        self._group(nothing.s() for _ in range(tasks))

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            value = next_.delay(value).get(**WAIT)
        place.check(value, tasks)

    def pipeline(self, tasks: int) -> None:
        # Each message contains the rest of the chain.
        line = chain(next_.s(0), *(next_.s() for _ in range(tasks - 1)))
        place.check(line.apply_async().get(**WAIT), tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(self._group(back.s(text) for text in sent), sent)

    def _group(self, signatures: Any) -> list[Any]:
        group_result = group(signatures).apply_async()
        results: list[Any] = group_result.get(**WAIT)
        place.check(len(results), len(group_result.results))
        return results

    def close(self) -> None:
        self._workers.close()
