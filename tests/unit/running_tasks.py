"""Tasks that read the state of their run, or do not end; few imports."""

from __future__ import annotations

import asyncio
import time
from concurrent import futures
from typing import Any

from wbengine import task


class Tells(task.Task):
    def execute(self) -> Any:
        return self.request, self.cancelled

    def revert(self, **kwargs: Any) -> Any:
        return self.request, self.cancelled


class TellsLater(task.Task):
    async def execute(self) -> Any:
        await asyncio.sleep(0)
        return self.request, self.cancelled


class Obeys(task.Task):
    """Task that runs until it is cancelled; a separate thread polls."""

    def execute(self) -> str:
        with futures.ThreadPoolExecutor(1) as own:
            return own.submit(self.wait).result()

    def wait(self) -> str:
        self.update_progress(0.5)
        while not self.cancelled:
            time.sleep(0.001)
        return "obeyed"


class Odd(task.Task):
    timelimit: Any = ("soon", None)

    def execute(self) -> None:
        pass


class Spins(task.Task):
    timelimit = (0.1, None)

    def execute(self) -> None:
        while True:
            pass


class Waits(task.Task):
    """Task that waits in the event loop."""

    timelimit = (0.1, None)

    async def execute(self) -> None:
        await asyncio.sleep(3600)
