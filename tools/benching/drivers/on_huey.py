"""Huey: `RedisHuey` and `FileHuey`.

With the variant `notify` Redis wakes up who waits for a result; by default results are looked for.
"""

from __future__ import annotations

from typing import Any

import payloads
import place
from huey import FileHuey, RedisHuey

PACKAGES = ["huey"]
#: Seconds between two looks for a result, of many, and of the only one.
ASKED, ASKED_ALONE = 0.002, 0.001


def _huey() -> Any:
    if place.MEDIUM == "redis":
        return RedisHuey("bench", url=place.URL, notify_result=place.VARIANT == "notify")
    return FileHuey("bench", path=str(place.FOLDER / "huey"))


huey = _huey()


@huey.task()
def nothing() -> bool:
    return True  # it keeps no None, and nobody could wait for that


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
        if place.MEDIUM == "filesystem":  # else it looks each 0.1 s at most, down to each 10 s
            command += ["--delay", "0.01", "--max-delay", "0.01"]
        self._workers = place.Workers(command)

    def wide(self, tasks: int) -> None:
        _all([nothing() for _ in range(tasks)])

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            value = _get(next_(value), ASKED_ALONE)
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


def _get(result: Any, often: float = ASKED) -> Any:
    # By itself it looks after 0.05 s first, then less and less often, down to once a second.
    return result.get(blocking=True, timeout=place.PATIENCE, max_delay=often)
