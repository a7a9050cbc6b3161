"""Tasks that log while they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow

LOG = logging.getLogger("tests.logging_tasks")
LOG.setLevel(logging.INFO)


class Talker(task.Task):
    """Logs a line with a secret when executed, and a line when reverted."""

    def execute(self, password: str) -> str:
        LOG.info("%s works with %s", self.name, password)
        return "done"

    def revert(self, **_: Any) -> None:
        LOG.warning("%s undoes it", self.name)


class AsyncTalker(task.Task):
    async def execute(self) -> None:
        LOG.info("%s begins", self.name)
        await asyncio.to_thread(LOG.info, "%s in a thread", self.name)


class Silent(task.Task):
    def execute(self) -> None:
        LOG.debug("nobody wants this")


class Failing(task.Task):
    def execute(self) -> None:
        try:
            raise ValueError("in vain")
        except ValueError:
            LOG.exception("%s tried", self.name)
        raise RuntimeError("gave up")


class Chatty(task.Task):
    def execute(self) -> None:
        for number in range(5000):
            LOG.info("%s", f"line {number} " + "x" * 100)


class Counting(task.Task):
    def execute(self) -> None:
        for number in range(1500):
            LOG.info("%d", number)


class Hanging(task.Task):
    def execute(self) -> None:
        LOG.info("asking the bank")
        time.sleep(10)


class Holding(task.Task):
    """Locks the database against writes while it logs, and logs how long a call took at most."""

    def execute(self, path: str) -> None:
        longest = 0.0
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            ends = time.monotonic() + 1.5
            while time.monotonic() < ends:
                began = time.monotonic()
                LOG.info("again")
                longest = max(longest, time.monotonic() - began)
                time.sleep(0.05)
        LOG.info("%f", longest)


class Forever(task.Task):
    """Logs until it is cancelled."""

    def execute(self) -> None:
        while not self.cancelled:
            LOG.info("%s goes on", self.name)
            time.sleep(0.05)


@task.task
def double(number: int) -> int:
    LOG.info("doubling %d", number)
    return 2 * number


def flow() -> Any:
    mapped = task.Map(double(), over="numbers", item="number", name="m")
    return linear_flow.Flow("f").add(
        Talker("talker"), AsyncTalker("async"), Silent("silent"), mapped
    )


@task.task
def connect(label: str, urls: list[str], shops: tuple[dict[str, str], ...]) -> None:
    LOG.info("%s %s %s", label, urls[0], shops[0]["api_key"])


@task.workflow
def connecting(steps: Any) -> None:
    steps.run(
        connect, "l" * 300, urls=["redis://:hunter22@host"], shops=({"api_key": "key-of-shop"},)
    )
