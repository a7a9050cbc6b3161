"""Tasks that read the state of their run, or do not end; few imports."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import time
from concurrent import futures
from typing import Any

from wbengine import exceptions, task


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


class Stubborn(task.Task):
    """Task that handles the exception of its hard time limit."""

    timelimit = (None, 0.05)

    def execute(self, raises: bool) -> str:
        try:
            while True:
                pass
        except exceptions.TimeLimitExceeded:
            if raises:
                raise LookupError("another error") from None
            return "finished"


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def change_context(name: str) -> tuple[str, int]:
    """Change the context, and return its values before."""
    before = tenant.get(), decimal.getcontext().prec
    tenant.set(name)
    decimal.getcontext().prec = 5
    return before


class ChangesContext(task.Task):
    def pre_execute(self) -> None:
        self.before = change_context("hook")

    def execute(self) -> list[tuple[str, int]]:
        return [self.before, change_context("body")]

    def revert(self, **kwargs: Any) -> tuple[str, int]:
        return change_context("revert")


class ChangesContextLater(ChangesContext):
    async def execute(self) -> list[tuple[str, int]]:  # type: ignore[override]
        await asyncio.sleep(0)
        return [self.before, change_context("body")]
