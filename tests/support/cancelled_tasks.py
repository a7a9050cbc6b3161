"""Tasks that are cancelled in tests, here and on workers; each writes down what it does."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from tests.support.sample_tasks import append
from wbengine import exceptions, task

#: Longer than any test waits.
LONG = 60.0


class Quick(task.Task):
    """Executed and reverted at once."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        return self.name

    def revert(self, path: str, result: Any, flow_failures: Any) -> None:
        append(path, f"-{self.name}")


class Heeds(Quick):
    """Runs until it is cancelled."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        end = time.monotonic() + LONG
        while not self.cancelled:
            assert time.monotonic() < end, "nobody told it"
            time.sleep(0.005)
        append(path, f"!{self.name}")
        raise exceptions.Cancelled(f"{self.name} stopped")


class Deaf(Quick):
    """Does not look whether it is cancelled."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        time.sleep(LONG)
        return self.name


class Waits(Quick):
    """A coroutine that waits for longer than anybody wants."""

    async def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        try:
            await asyncio.sleep(LONG)
        finally:
            append(path, f"!{self.name}")
        return self.name


class Item(Heeds):
    """One item of a Map: the first two end at once."""

    def execute(self, path: str, item: int) -> str:  # type: ignore[override]
        return super().execute(path) if item > 1 else Quick.execute(self, path)

    def revert(self, path: str, result: Any, flow_failures: Any) -> None:
        super().revert(path, result, flow_failures)


class Threads(Quick):
    """Asks in a thread of its own whether it was cancelled."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name} {os.getpid()}")
        told = threading.Event()

        def look() -> None:
            end = time.monotonic() + LONG
            while not self.cancelled and time.monotonic() < end:
                time.sleep(0.005)
            told.set()

        threading.Thread(target=look, daemon=True).start()
        assert told.wait(LONG)
        raise exceptions.Cancelled(self.name)
