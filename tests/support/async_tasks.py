"""Coroutine tasks for all kinds of engines. The module imports no flow."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from wbengine import task


class Double(task.Task):
    default_provides = "double"

    async def execute(self, x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x


@task.task(provides="greeting")
async def greet(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


class Where(task.Task):
    """Returns the process, the event loop, and whether no asyncio task is current."""

    default_provides = "where"

    async def execute(self) -> tuple[int, int, bool]:
        await asyncio.sleep(0)
        plain = asyncio.current_task() is None
        return os.getpid(), id(asyncio.get_running_loop()), plain


class Write(task.Task):
    """Writes a file when executed and deletes it when reverted; its hooks check their order."""

    async def pre_execute(self) -> None:
        await asyncio.sleep(0)
        self.hooked = ["pre_execute"]

    async def execute(self, path: str) -> str:
        assert self.hooked == ["pre_execute"]
        await asyncio.sleep(0)
        Path(path).write_text("here", encoding="utf-8")
        return path

    async def post_execute(self) -> None:
        await asyncio.sleep(0)
        assert self.hooked.pop() == "pre_execute"

    async def revert(self, result: Any, flow_failures: Any, path: str) -> str:
        await asyncio.sleep(0)
        Path(f"{path}.reverted").write_text(f"{result}|{sorted(flow_failures)}", encoding="utf-8")
        Path(path).unlink()
        return "undone"


class Fail(task.Task):
    """Fails in the way that `how` selects."""

    async def execute(self, how: str) -> None:
        await asyncio.sleep(0)
        if how == "exit":
            sys.exit(3)
        raise ValueError(how)


who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Named(task.Task):
    """Sets a context variable that other tasks must not see; its hooks see it."""

    async def pre_execute(self) -> None:
        self.before = who.get()
        who.set(self.name)

    async def execute(self) -> list[str]:
        await asyncio.sleep(0.01)
        return [self.before, who.get()]


class CountsConcurrency(task.Task):
    """Counts how many instances run at once in this process."""

    now: ClassVar[int] = 0
    most: ClassVar[int] = 0

    async def execute(self) -> int:
        cls = type(self)
        cls.now += 1
        cls.most = max(cls.most, cls.now)
        await asyncio.sleep(0.02)
        cls.now -= 1
        return cls.most


class WaitFor(task.Task):
    """Writes a file when it starts, and waits until another file exists."""

    default_provides = "waited"

    async def execute(self, started: str, release: str) -> str:
        Path(started).write_text(str(os.getpid()), encoding="utf-8")
        while not Path(release).exists():
            await asyncio.sleep(0.005)
        return "released"


class ReturnsUnstorable(task.Task):
    """Returns a value that cannot be stored, selected by name."""

    default_provides = "given"

    def execute(self, what: str) -> Any:
        return {"x": [{"object": object, "set": lambda: {1, (2,)}}[what]()]}
