"""RQ: a pool of workers, which fork for each job; `enqueue_many` sends many jobs."""

from __future__ import annotations

from typing import Any

import payloads
import place
from redis import Redis
from rq import Queue

PACKAGES = ["rq", "redis"]


def nothing() -> None:
    return None


def next_(x: int) -> int:
    return x + 1


def back(x: str) -> str:
    return x


class Driver:
    def __init__(self) -> None:
        self._queue = Queue("bench", connection=Redis.from_url(place.URL))
        self._workers = place.Workers(
            ["-m", "rq.cli", "worker-pool", "bench", "--num-workers", str(place.SLOTS),
             "--url", place.URL, "--quiet", "--path", "."]
        )  # fmt: skip

    def wide(self, tasks: int) -> None:
        prepare = Queue.prepare_data
        jobs = self._queue.enqueue_many([prepare(nothing) for _ in range(tasks)])
        place.check(len([_get(job) for job in jobs]), tasks)

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            value = _get(self._queue.enqueue(next_, value))
        place.check(value, tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        jobs = self._queue.enqueue_many([Queue.prepare_data(back, (text,)) for text in sent])
        place.check([_get(job) for job in jobs], sent)

    def close(self) -> None:
        self._workers.close()


def _get(job: Any) -> Any:
    result = job.latest_result(timeout=place.PATIENCE)
    if result is None or result.type != result.Type.SUCCESSFUL:
        raise RuntimeError(f"{job.id} has no result")
    return result.return_value
