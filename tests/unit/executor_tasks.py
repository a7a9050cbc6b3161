"""Tasks for tests of executors; few imports, so that child processes start quickly."""

from __future__ import annotations

import asyncio
import os
import signal  # noqa: F401  (for `Gives`)
import threading
from typing import Any

from wbengine import running, task
from wbengine.types import failure as ft


class Echo(task.Task):
    def execute(self, value: Any = None) -> Any:
        self.update_progress(0.5)
        return value

    def revert(self, result: Any, flow_failures: Any) -> Any:
        return result, sorted(flow_failures)


class Describe(task.Task):
    """Task that returns attributes of its call."""

    def execute(self, names: list[str]) -> dict[str, Any]:
        running_call = running.CURRENT.get()
        return {name: getattr(running_call, name) for name in names}


class Raises(task.Task):
    def execute(self) -> None:
        raise LookupError("gone")


class Odd(task.Task):
    def execute(self) -> Any:
        return lambda: None


class Fetch(task.Task):
    """Task with only async methods."""

    async def pre_execute(self) -> None:
        await asyncio.sleep(0)
        self.before = asyncio.current_task()

    async def execute(self, value: Any = None) -> Any:
        assert asyncio.current_task() is self.before
        self.update_progress(0.5)
        await asyncio.sleep(0)
        self.update_progress(1.0)
        if isinstance(value, BaseException):
            raise value
        return os.getpid(), threading.current_thread().name, value

    async def post_execute(self) -> None:
        assert asyncio.current_task() is self.before
        del self.before

    async def revert(self, result: Any, flow_failures: Any) -> Any:
        await asyncio.sleep(0)
        return result, sorted(flow_failures)


class Hides(task.Task):
    """Task whose plain methods return coroutines."""

    def execute(self) -> Any:
        return coroutine_of(5)

    def revert(self, result: Any, **kwargs: Any) -> Any:
        return coroutine_of(result)


async def coroutine_of(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def gift(what: str) -> Any:
    return {"a": [1, eval(what)]}


class Gives(task.Task):
    """Task that creates values that cannot be encoded."""

    def execute(self, what: str) -> Any:
        return gift(what)

    def revert(self, result: Any, **kwargs: Any) -> Any:
        return "undone" if isinstance(result, ft.Failure) else object()


class GivesLater(Gives):
    async def execute(self, what: str) -> Any:
        return gift(what)
