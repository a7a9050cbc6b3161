"""Tasks with limits that record their runs, and flows of them."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from wbengine import engines, task
from wbengine.patterns import unordered_flow

_lock = threading.Lock()


class Runs:
    """Names of the tasks that ran, in the order of their start, and the numbers that ran at once.

    `test` is the number of the test: tasks that an earlier test left running are not counted.
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


RUNS = Runs()
#: Set to end the tasks that run without a time limit.
RELEASED = threading.Event()
ENDLESS = -1.0


def clear() -> None:
    RUNS.__init__(RUNS.test + 1)  # type: ignore[misc]
    RELEASED.clear()


@task.task(concurrency=3, idempotent=True)
def three(who: str, seconds: float) -> str:
    test = RUNS.begin(who)
    RELEASED.wait(100) if seconds == ENDLESS else time.sleep(seconds)
    RUNS.end(test)
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
    flow = unordered_flow.Flow(who)
    for number in range(many):
        inject = {"who": who, "seconds": seconds}
        flow.add(made(f"{number}", inject=inject, provides=f"told {number}"))
    return flow


def hold(url: str) -> None:
    """Acquire all permits of `three`, print the process id, and block."""
    engine = engines.load(
        flow(three, 3, "holder", ENDLESS), backend=url, engine="parallel", lease=2
    )
    threading.Thread(target=engine.run, daemon=True).start()
    while RUNS.running < 3:
        time.sleep(0.01)
    print(os.getpid(), flush=True)
    threading.Event().wait()
