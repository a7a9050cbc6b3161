"""Huey: `RedisHuey` and `FileHuey`.

With the variant `notify`, Redis notifies callers of results; by default, callers poll.
"""

from __future__ import annotations

from typing import Any

import payloads
import place
from huey import FileHuey, RedisHuey

PACKAGES = ["huey"]
#: Seconds between two polls, for many results and for a single one.
POLL_SECONDS, SINGLE_POLL_SECONDS = 0.002, 0.001


def _huey() -> Any:
    if place.MEDIUM == "redis":
        return RedisHuey("bench", url=place.URL, notify_result=place.VARIANT == "notify")
    return FileHuey("bench", path=str(place.FOLDER / "huey"))


huey = _huey()


@huey.task()
def nothing() -> bool:
    return True  # results that are None are not stored, so that nothing can wait for them


@huey.task()
def next_(x: int) -> int:
    return x + 1


@huey.task()
def back(x: str) -> str:
    return x


class Driver:
    def __init__(self) -> None:
        command = ["-m", "huey.bin.huey_consumer", "on_huey.huey", "--workers", str(place.SLOTS),
                   "--worker-type", "thread", "--quiet"]  # fmt: skip
        if place.MEDIUM == "filesystem":  # the defaults are 0.1 s, growing to 10 s
            command += ["--delay", "0.01", "--max-delay", "0.01"]
        self._workers = place.Workers(command)

    def wide(self, tasks: int) -> None:
        _all([nothing() for _ in range(tasks)])

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            value = _get(next_(value), SINGLE_POLL_SECONDS)
        place.check(value, tasks)

    def pipeline(self, tasks: int) -> None:
        line = next_.s(0)
        for _ in range(tasks - 1):
            line = line.then(next_)
        place.check(_get([*huey.enqueue(line)][-1]), tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(_all([back(text) for text in sent]), sent)

    def close(self) -> None:
        self._workers.close()


def _all(results: list[Any]) -> list[Any]:
    return [_get(result) for result in results]


def _get(result: Any, often: float = POLL_SECONDS) -> Any:
    # By default, Huey polls first after 0.05 s, then less often, down to once a second.
    return result.get(blocking=True, timeout=place.PATIENCE, max_delay=often)
