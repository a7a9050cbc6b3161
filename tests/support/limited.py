"""Limited tasks that tell when they run, and a flow of them that a process runs."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from wbengine import engines, task
from wbengine.patterns import unordered_flow

_lock = threading.Lock()


class Told:
    """Who ran, in the order of their beginning; how many at once, and at most.

    `test` counts tests: what one before left running is none of its business.
    """

    def __init__(self, test: int = 0) -> None:
        self.test = test
        self.began: list[tuple[str, float]] = []
        self.running = self.most = 0

    def begin(self, who: str) -> int:
        with _lock:
            self.began.append((who, time.monotonic()))
            self.running += 1
            self.most = max(self.most, self.running)
            return self.test

    def end(self, test: int) -> None:
        with _lock:
            self.running -= test == self.test


TOLD = Told()
#: Ends those that were to run for as long as this is not set.
RELEASED = threading.Event()
ENDLESS = -1.0


def clear() -> None:
    TOLD.__init__(TOLD.test + 1)  # type: ignore[misc]
    RELEASED.clear()


@task.task(concurrency=3, idempotent=True)
def three(who: str, seconds: float) -> str:
    test = TOLD.begin(who)
    RELEASED.wait(100) if seconds == ENDLESS else time.sleep(seconds)
    TOLD.end(test)
    return who


@task.task
def free(who: str, seconds: float) -> str:
    return str(three.fn(who, seconds))


@task.task(rate_limit="20/s")
def twenty(who: str, seconds: float) -> str:
    return str(three.fn(who, seconds))


@task.task(concurrency=1, concurrency_key=lambda customer: customer)
def one_each(customer: str, seconds: float) -> str:
    return str(three.fn(customer, seconds))


def flow(made: Any, many: int, who: str = "f", seconds: float = 0.02) -> unordered_flow.Flow:
    found = unordered_flow.Flow(who)
    for number in range(many):
        inject = {"who": who, "seconds": seconds}
        found.add(made(f"{number}", inject=inject, provides=f"told {number}"))
    return found


def hold(url: str) -> None:
    """Take all permits of `three`, say so, and never end."""
    engine = engines.load(
        flow(three, 3, "holder", ENDLESS), backend=url, engine="parallel", lease=2
    )
    threading.Thread(target=engine.run, daemon=True).start()
    while TOLD.running < 3:
        time.sleep(0.01)
    print(os.getpid(), flush=True)
    threading.Event().wait()
