"""Tasks with the same names for both kinds of workers.

They are Celery tasks in a process with `WBENGINE_TEST_SIDE=celery`, otherwise wbengine tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

#: Variable that selects the kind of the tasks in this process.
SIDE = "WBENGINE_TEST_SIDE"

if TYPE_CHECKING or os.environ.get(SIDE) != "celery":
    from wbengine.interop import celery as wire
    from wbengine.task import task

    MINE = "wbengine"
else:
    import celery

    MINE = "celery"

    def task(function: Any = None, /, **options: Any) -> Any:
        """Return a Celery task like `wbengine.task.task` returns a wbengine task."""
        bound = function is not None and "self" in function.__code__.co_varnames[:1]
        if function is not None:
            return celery.shared_task(function, bind=bound, name=f"{__name__}.{function.__name__}")
        return lambda body: task(body)


class Odd(Exception):
    """An exception that both sides can import."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class Hidden(Exception):
    """An exception whose module cannot be imported."""


Hidden.__module__ = "nowhere.at.all"


def write(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@task
def add(x: Any, y: Any) -> Any:
    return x + y


@task
def mul(x: Any, y: Any) -> Any:
    return x * y


@task
def total(numbers: Sequence[int]) -> int:
    return sum(numbers)


@task
def same(value: Any) -> Any:
    return value


@task
def shown(value: Any) -> str:
    return repr(value)


@task
def size(value: Any) -> list[Any]:
    return [type(value).__name__, len(value)]


@task
def moment() -> float:
    return time.time()


@task
def swap(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def note(path: str, line: str = "ran") -> str:
    """Write a line."""
    write(path, line)
    return line


@task
def note_value(value: Any, *, path: str) -> Any:
    """Write the argument of a `link` callback."""
    write(path, repr(value))
    return value


@task
def note_error(task_id: str, *, path: str) -> None:
    """Write the argument of a `link_error` callback with one argument."""
    write(path, f"error of {task_id}")


@task
def note_failure(request: Any, error: Any, traceback: Any, *, path: str) -> None:
    """Write the arguments of a `link_error` callback with three arguments, which runs in the
    worker.
    """
    write(path, f"{request.id} {request.task} {type(error).__name__} {error.args}")


@task
def fail(text: str = "no such luck") -> None:
    try:
        {}["absent"]
    except KeyError as error:
        raise ValueError(text, 7) from error


@task
def fail_then(gate: str, text: str = "no such luck") -> None:
    """Fail when the file `gate` exists."""
    until_there(gate)
    raise ValueError(text)


@task
def fail_oddly() -> None:
    raise Odd("as odd as can be", 3)


@task
def fail_hidden() -> None:
    raise Hidden("of nowhere")


@task
def rest(seconds: float, path: str | None = None) -> float:
    """Write a line, then sleep in short steps, so that signals end it soon."""
    if path is not None:
        write(path, f"begins in {os.getpid()}")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
    return seconds


@task(idempotent=True)
def rest_again(seconds: float, path: str) -> float:
    """Sleep like `rest`, but idempotent."""
    write(path, f"begins in {os.getpid()}")
    time.sleep(seconds)
    return seconds


@task(idempotent=True)
def lose(path: str) -> None:
    """Raise WorkerLost, as if a nested request had lost its worker."""
    from wbengine import exceptions

    write(path, "ran")
    raise exceptions.WorkerLost("that of another task")


def until_there(gate: str) -> None:
    """Wait for a file, with a time limit because other tests use the slot, too."""
    end = time.monotonic() + 100
    while not Path(gate).exists():
        if time.monotonic() > end:
            raise TimeoutError(gate)
        time.sleep(0.02)


@task
def hold(path: str, gate: str) -> str:
    """Write a line, wait for the file `gate` and return the kind of worker."""
    write(path, f"begins in {os.getpid()}")
    until_there(gate)
    return MINE


@task(idempotent=True)
def hold_again(path: str, gate: str) -> str:
    """Wait like `hold`, but idempotent."""
    write(path, f"begins in {os.getpid()}")
    until_there(gate)
    return MINE


@task
def rest_and_stop(seconds: float, path: str, number: int) -> float:
    """Sleep like `rest`; after `number` starts, stop the worker until it receives SIGCONT."""
    write(path, f"begins in {os.getpid()}")
    if len(Path(path).read_text(encoding="utf-8").splitlines()) >= number:
        with contextlib.suppress(FileExistsError), open(f"{path}.stops", "x", encoding="utf-8"):
            os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(seconds)
    return seconds


@task
def stubborn(seconds: float, path: str) -> None:
    """Ignore all exceptions until the hard limit."""
    write(path, "begins")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.05)
        except Exception as error:
            write(path, f"shrugs at {type(error).__name__}")
    write(path, "ends")


@task
def gentle(seconds: float) -> str:
    """Clean up at the soft limit."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(0.02)
    except Exception as error:
        return f"cleaned up after {type(error).__name__}"
    return "was never stopped"


@task
async def wait(seconds: float, clean: bool = False) -> str:
    """Sleep in a coroutine, unsupported by Celery; clean up or fail at the soft limit."""
    try:
        await asyncio.sleep(seconds)
    except Exception as error:
        if not clean:
            raise
        await asyncio.sleep(0.01)
        return f"cleaned up after {type(error).__name__}"
    return "was never stopped"


@task
def meet(folder: str) -> str:
    """Wait until both kinds of workers have started a part; return the kind of worker."""
    for kind in ("begun", MINE):
        Path(folder, kind).touch()
    for kind in ("wbengine", "celery"):
        until_there(f"{folder}/{kind}")
    return MINE


@task
def joined(values: Sequence[Any]) -> list[Any]:
    """Return the kind of worker and the values, as the body of a chord."""
    return [MINE, list(values)]


@task
def about(self: Any) -> dict[str, Any]:
    """Return fields of the task's request."""
    context = self.request if MINE == "celery" else wire.current()
    names = ("id", "root_id", "parent_id", "group", "group_index", "retries", "correlation_id")
    values = {name: getattr(context, name) for name in names}
    return {**values, "stamps": dict(context.stamps or {}), "extra": extra(context)}


def extra(options: Any) -> Any:
    """Return a custom header."""
    return options.get("color") if MINE == "celery" else options.extra.get("color")


@task
def flaky(self: Any, path: str, times: int, most: int = 3) -> int:
    """Request retries until the task ran `times` times."""
    write(path, "ran")
    ran = len(Path(path).read_text(encoding="utf-8").splitlines())
    if ran > times:
        return ran
    if MINE == "celery":
        raise self.retry(countdown=0.05, max_retries=most, exc=Odd("too often", ran))
    raise wire.Retry(countdown=0.05, max_retries=most, exc=Odd("too often", ran))


@task
def hold_then_retry(self: Any, path: str, gate: str) -> str:
    """Wait like `hold`, but request a retry instead of the first result."""
    write(path, "ran")
    until_there(gate)
    if MINE == "celery":
        return MINE if self.request.retries else self.retry(countdown=0.05)
    if wire.current().retries:
        return MINE
    raise wire.Retry(countdown=0.05)
