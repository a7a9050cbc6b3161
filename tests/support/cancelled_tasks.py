"""Tasks that tests cancel, in this process and on workers. Each records what it does."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from tests.support.sample_tasks import append
from wbengine import exceptions, task

#: Longer than the timeout of any test.
LONG = 60.0


class Quick(task.Task):
    """Executes and reverts at once."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        return self.name

    def revert(self, path: str, result: Any, flow_failures: Any) -> None:
        append(path, f"-{self.name}")


class Cancellable(Quick):
    """Runs until it is cancelled."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        end = time.monotonic() + LONG
        while not self.cancelled:
            assert time.monotonic() < end, "nobody told it"
            time.sleep(0.005)
        append(path, f"!{self.name}")
        raise exceptions.Cancelled(f"{self.name} stopped")


class IgnoresCancel(Quick):
    """Does not check whether it is cancelled."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        time.sleep(LONG)
        return self.name


class Waits(Quick):
    """A coroutine that sleeps longer than any test."""

    async def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        try:
            await asyncio.sleep(LONG)
        finally:
            append(path, f"!{self.name}")
        return self.name


class Item(Cancellable):
    """One item of a Map: the first two end at once."""

    def execute(self, path: str, item: int) -> str:  # type: ignore[override]
        return super().execute(path) if item > 1 else Quick.execute(self, path)

    def revert(self, path: str, result: Any, flow_failures: Any) -> None:
        super().revert(path, result, flow_failures)


class Threads(Quick):
    """Checks for its cancellation in another thread."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        event = threading.Event()

        def look() -> None:
            end = time.monotonic() + LONG
            while not self.cancelled and time.monotonic() < end:
                time.sleep(0.005)
            event.set()

        threading.Thread(target=look, daemon=True).start()
        assert event.wait(LONG)
        raise exceptions.Cancelled(self.name)
