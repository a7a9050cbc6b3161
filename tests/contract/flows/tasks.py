"""Tasks of the suite: classes that workers can create by name.

Their behaviour depends on arguments. `revert` methods return what they received.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import operator
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from wbengine import task
from wbengine.types import failure as ft


def told(result: Any, flow_failures: dict[str, Any]) -> str:
    """Return the arguments of a revert in one line."""
    if isinstance(result, ft.Failure):
        result = f"{next(iter(result))}({result.exception_str})"
    return f"{result} | {' '.join(sorted(flow_failures))}"


class Trouble(Exception):
    """Exception of this module."""


class Step(task.Task):
    """Task that returns its own name."""

    def execute(self) -> str:
        return self.name

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:
        return told(result, flow_failures)


class Give(Step):
    """Task that returns its argument."""

    def execute(self, value: Any) -> Any:
        return value


class Plain(task.Task):
    """Task without `revert`."""

    def execute(self, x: Any) -> Any:
        return x


class Add(Step):
    def execute(self, x: int, y: int = 10) -> int:
        return x + y


class Quiet(task.Task):
    """Task whose `revert` returns nothing, because the order of failures varies."""

    def execute(self) -> str:
        return self.name

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> None:
        assert flow_failures


class BoomOnly(Quiet):
    def execute(self) -> str:
        raise ValueError(f"{self.name} fails")


class Sum(Step):
    def execute(self, x: int, y: int) -> int:
        return x + y


class Boom(Step):
    def execute(self) -> str:
        raise ValueError(f"{self.name} fails")


class Troubled(Step):
    """Task that fails with a cause."""

    def execute(self) -> str:
        try:
            return {}["nothing"]
        except KeyError as error:
            raise Trouble("deep trouble", 7) from error


class Exits(Step):
    def execute(self) -> str:
        sys.exit(3)


class Keywords(Step):
    """Task that returns the names and values of its arguments."""

    def execute(self, **kwargs: Any) -> list[Any]:
        return sorted(kwargs.items())


class KeywordOnly(Step):
    def execute(self, *, x: int, z: int = 3) -> int:
        return x * z


class Until(Step):
    """Task that fails while `n`, provided by a retry, is less than `until`."""

    def execute(self, n: int, until: int) -> int:
        if n < until:
            raise RuntimeError(f"{self.name} fails in try {n}")
        return n


class QuietUntil(Quiet):
    """`Until` with a `revert` that returns nothing."""

    def execute(self, n: int, until: int) -> int:
        if n < until:
            raise RuntimeError(f"{self.name} fails in try {n}")
        return n


class Counted(Step):
    """Task that fails until it was executed `times` times, counted in a folder."""

    def execute(self, folder: str, times: int) -> int:
        counter = Path(folder, self.name)
        with counter.open("a", encoding="ascii") as stream:
            stream.write("x")
        count = len(counter.read_text(encoding="ascii"))
        if count < times:
            raise RuntimeError(f"{self.name} fails the {count}. time")
        return count


class DividesInto(Step):
    """Task that fails for n = 0."""

    def execute(self, n: int) -> float:
        return 10 / n


class Finds(Step):
    def execute(self, city: str) -> str:
        if city != "Rome":
            raise LookupError(f"{city} is not it")
        return city


class RevertFails(Step):
    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:
        raise KeyError(f"{self.name} stays")


class FailsTwice(RevertFails):
    """Task that fails in `execute` and `revert`."""

    def execute(self) -> str:
        raise ValueError(f"{self.name} fails")


class Carries(task.Task):
    """Task whose `revert` returns its arguments."""

    def execute(self, odd: Any) -> Any:
        return odd

    def revert(self, odd: Any, result: Any, flow_failures: Any) -> Any:
        return {"result": result, "odd": odd}


class WantsTuple(Give):
    def execute(self, value: Any) -> Any:
        if type(value) is not tuple:
            raise TypeError("not this one")
        return value


class Changes(Give):
    def execute(self, value: Any) -> Any:
        value["shared"].append("changed")
        return value


class Marks(task.Task):
    """Task whose `revert` creates a file."""

    def execute(self) -> str:
        return self.name

    def revert(self, folder: str) -> None:
        Path(folder, f"{self.name}.reverted").touch()


class MarksBoom(Marks):
    def execute(self) -> str:
        raise ValueError(f"{self.name} fails")


class StaysAfter(Marks):
    """Task whose `revert` fails after all others are reverted."""

    def revert(self, folder: str, others: int) -> None:
        while len(list(Path(folder).glob("*.reverted"))) < others:
            time.sleep(0.001)
        raise KeyError(f"{self.name} stays")


class RevertsAlone(Step):
    """Task whose `revert` has no parameters."""

    def revert(self) -> str:
        return "alone"


class RevertsWith(Step):
    """Task whose `revert` takes values of the store, one of them optional."""

    def execute(self, x: int) -> int:
        return x

    def revert(self, x: int, y: int, z: int = 5, **others: Any) -> list[Any]:
        return [x, y, z, sorted(others)]


class LooksBack(Step):
    """Task whose `revert` returns everything about a failure."""

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> list[Any]:
        [failure] = flow_failures.values()
        return [
            list(failure),
            failure.exception_str,
            list(failure.exception_args),
            [list(cause) for cause in failure.causes],
            "in execute" in failure.traceback_str,
        ]


class Grouped(Step):
    """Task that fails with a group whose members have a cause, notes and attributes."""

    def execute(self) -> str:
        members: list[Exception] = []
        try:
            raise KeyError("nothing")
        except KeyError as error:
            members.append(FileNotFoundError(2, "no", "file"))
            members[0].__cause__ = error
            members[0].add_note("of disk 3")
        raise ExceptionGroup("rows", [*members, ExceptionGroup("more", [ValueError("x")])])


class Hooked(Step):
    """Task that reports calls of its hooks."""

    TASK_EVENTS = frozenset({task.EVENT_UPDATE_PROGRESS, "hook"})
    fails_in = ""

    def _hook(self, name: str) -> None:
        self.notifier.notify("hook", {"name": name})
        if name in self.fails_in.split():
            raise Trouble(f"{name} fails")

    def pre_execute(self) -> None:
        self._hook("pre_execute")

    def execute(self) -> str:
        self._hook("execute")
        return self.name

    def post_execute(self) -> None:
        self._hook("post_execute")

    def pre_revert(self) -> None:
        self._hook("pre_revert")

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:
        self._hook("revert")
        return told(result, flow_failures)

    def post_revert(self) -> None:
        self._hook("post_revert")


class PreFails(Hooked):
    fails_in = "pre_execute"


class PostFails(Hooked):
    fails_in = "post_execute"


class BothFail(Hooked):
    fails_in = "execute post_execute"


class PreRevertFails(Hooked):
    fails_in = "pre_revert"


class PostRevertFails(Hooked):
    fails_in = "post_revert"


class Progressing(Step):
    """Task that reports progress and an event of its own."""

    TASK_EVENTS = frozenset({task.EVENT_UPDATE_PROGRESS, "counted"})

    def execute(self) -> str:
        self.update_progress(0.25)
        self.notifier.notify("counted", {"number": 1, "of": (1, 2)})
        self.update_progress(0.5)
        return self.name


class HalfWay(Step):
    def execute(self) -> str:
        self.update_progress(0.5)
        raise ValueError("only half")


class Local(Step):
    """Task that runs in the process of its engine."""

    local = True


class Urgent(Step):
    priority = 5


class Lengths(task.MapFunctorTask):
    """Task that returns the lengths of two texts."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(len, requires=["left", "right"], name=name, provides="lengths")


class Total(task.ReduceFunctorTask):
    """Task that returns the sum of three numbers."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(operator.add, requires=["x", "y", "z"], name=name, provides="total")


class Sleeps(Step):
    def execute(self, seconds: float) -> str:
        time.sleep(seconds)
        return self.name


class Awaits(Step):
    """Task with coroutines."""

    async def execute(self) -> str:
        await asyncio.sleep(0)
        self.update_progress(0.5)
        await asyncio.create_task(asyncio.sleep(0.001))
        return self.name

    async def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:
        await asyncio.sleep(0)
        return told(result, flow_failures)


class AwaitsTrouble(Awaits):
    async def execute(self) -> str:
        await asyncio.sleep(0)
        raise Trouble("awaited")


class AwaitsHooks(Hooked):
    """`Hooked` with coroutines, whose context is not that of other tasks."""

    async def pre_execute(self) -> None:  # type: ignore[override]
        assert WHO.get() == "nobody"
        WHO.set(self.name)
        await asyncio.sleep(0)
        self._hook("pre_execute")

    async def execute(self) -> str:  # type: ignore[override]
        await asyncio.sleep(0.001)
        self._hook("execute")
        return WHO.get()

    async def post_execute(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self._hook("post_execute")

    async def pre_revert(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self._hook("pre_revert")

    async def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        self._hook("revert")
        return told(result, flow_failures)

    async def post_revert(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self._hook("post_revert")


WHO = contextvars.ContextVar("WHO", default="nobody")


class Cancels(task.Task):
    """Task that raises CancelledError, or cancels itself."""

    async def execute(self, itself: bool) -> None:
        await asyncio.sleep(0)
        if not itself:
            raise asyncio.CancelledError("enough")
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)


class Groups(task.Task):
    """Task with groups, timeouts and threads of asyncio, which leaves one asyncio task running."""

    kept: ClassVar[list[Any]] = []

    async def execute(self) -> list[Any]:
        self.kept.append(asyncio.create_task(asyncio.sleep(3600)))
        found = await asyncio.gather(*(self._part(number) for number in range(2)))
        async with asyncio.TaskGroup() as group:
            part = group.create_task(self._part(2))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(3600)
        return [*found, part.result(), await asyncio.to_thread(sum, [1, 2])]

    async def _part(self, number: int) -> int:
        await asyncio.sleep(0)
        return number


class Squares(task.Task):
    def execute(self, item: int) -> int:
        if item < 0:
            raise ValueError(f"{item} is negative")
        return item * item


class Scales(task.Task):
    """Task with a required and an optional argument in addition to the item."""

    def execute(self, item: int, factor: int, offset: int = 0) -> int:
        return item * factor + offset


class Touches(task.Task):
    """Task that appends a line to a file for each execution and reversion."""

    def execute(self, item: int, folder: str) -> int:
        self._note(folder, f"+{item}")
        return item

    def revert(self, item: int, folder: str, flow_failures: dict[str, ft.Failure]) -> None:
        self._note(folder, f"-{item}")

    def _note(self, folder: str, line: str) -> None:
        with Path(folder, "notes").open("a", encoding="ascii") as stream:
            stream.write(f"{line}\n")


class TellsItem(task.Task):
    def execute(self, item: int) -> None:
        self.update_progress(0.5)


class CountsFailures(Step):
    def execute(self, items: list[Any]) -> int:
        return sum(isinstance(item, ft.Failure) for item in items)


class Grows(Step):
    """Task that returns a list with one more item in each attempt."""

    def execute(self, n: int) -> list[int]:
        return [2] * n


class Undone(task.Task):
    """Task that reverts each number but 2."""

    def execute(self, item: int) -> int:
        return item

    def revert(self, result: int, flow_failures: dict[str, ft.Failure]) -> str:
        if result == 2:
            raise KeyError("2 stays")
        return f"{result} is undone"


class Locks(task.Task):
    """Task that returns a value that cannot be encoded."""

    def execute(self) -> Any:
        return {"lock": [1, threading.Lock()]}

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:
        return next(iter(result))


def shout(text: str, mark: str = "!") -> str:
    return text.upper() + mark


def whisper(result: str, flow_failures: dict[str, ft.Failure]) -> str:
    return told(result.lower(), flow_failures)


class Shouting(task.FunctorTask):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(shout, name=name, provides="shouted", revert=whisper)


@task.task(provides="greeting", inject={"greeting": "hello"})
def greet(greeting: str, who: str) -> str:
    return f"{greeting} {who}"


@greet.revert
def forget(result: Any, flow_failures: dict[str, ft.Failure]) -> str:
    return told(result, flow_failures)


@task.task
def spoil(who: str) -> str:
    raise ValueError(f"{who} is spoilt")


@spoil.revert
def unspoil(result: Any) -> str:
    return f"never called: {result}"


@task.task
def half_do(who: str) -> str:
    raise ValueError(f"half of {who}")


@half_do.revert(failed=True)
def undo_half(result: Any, flow_failures: dict[str, ft.Failure]) -> str:
    return told(result, flow_failures)


@task.task
async def wait_and_spoil(who: str) -> str:
    raise ValueError(f"{who} is spoilt")


@wait_and_spoil.revert
async def wait_and_unspoil(result: Any) -> str:
    return f"never called: {result}"


@task.task
def steps_of(self: task.Task, count: int) -> str:
    for number in range(count):
        self.update_progress((number + 1) / count)
    return self.name


@task.task
async def tenfold(x: int) -> int:
    await asyncio.sleep(0)
    return 10 * x
