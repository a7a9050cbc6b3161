"""Tasks of both kinds under the same names: functions, which are Celery's tasks in a process with
`WBENGINE_TEST_SIDE=celery`, and our own elsewhere.
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

#: Which of the two the tasks of this process are.
SIDE = "WBENGINE_TEST_SIDE"

if TYPE_CHECKING or os.environ.get(SIDE) != "celery":
    from wbengine.interop import celery as wire
    from wbengine.task import task

    MINE = "wbengine"
else:
    import celery

    MINE = "celery"

    def task(function: Any = None, /, **options: Any) -> Any:
        """What `wbengine.task.task` makes a task of, as one of Celery's."""
        bound = function is not None and "self" in function.__code__.co_varnames[:1]
        if function is not None:
            return celery.shared_task(function, bind=bound, name=f"{__name__}.{function.__name__}")
        return lambda body: task(body)


class Odd(Exception):
    """Of our own: both ends can import it."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class Hidden(Exception):
    """As `Odd`, but it says that it is of a place that nobody can import."""


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
    """Leaves a line."""
    write(path, line)
    return line


@task
def note_value(value: Any, *, path: str) -> Any:
    """For `link`: leaves what it was called with."""
    write(path, repr(value))
    return value


@task
def note_error(task_id: str, *, path: str) -> None:
    """For `link_error`, as Celery calls what takes one argument."""
    write(path, f"error of {task_id}")


@task
def note_failure(request: Any, error: Any, traceback: Any, *, path: str) -> None:
    """For `link_error`, as Celery calls what takes more, within the worker."""
    write(path, f"{request.id} {request.task} {type(error).__name__} {error.args}")


@task
def fail(text: str = "no such luck") -> None:
    try:
        {}["absent"]
    except KeyError as error:
        raise ValueError(text, 7) from error


@task
def fail_then(gate: str, text: str = "no such luck") -> None:
    """Fails once its gate is there."""
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
    """Takes its time, and says when it begins; it ends soon when it is told to."""
    if path is not None:
        write(path, f"begins in {os.getpid()}")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
    return seconds


@task(idempotent=True)
def rest_again(seconds: float, path: str) -> float:
    """As `rest`, which may be run again when its worker was lost."""
    write(path, f"begins in {os.getpid()}")
    time.sleep(seconds)
    return seconds


@task(idempotent=True)
def lose(path: str) -> None:
    """Fails as what asks a worker that is lost; its own one is not."""
    from wbengine import exceptions

    write(path, "ran")
    raise exceptions.WorkerLost("that of another task")


def until_there(gate: str) -> None:
    """Wait until somebody makes a file, but not for ever: a slot is not for one test only."""
    end = time.monotonic() + 100
    while not Path(gate).exists():
        if time.monotonic() > end:
            raise TimeoutError(gate)
        time.sleep(0.02)


@task
def hold(path: str, gate: str) -> str:
    """Says when it begins, and ends once its gate is there; which kind of worker runs it."""
    write(path, f"begins in {os.getpid()}")
    until_there(gate)
    return MINE


@task(idempotent=True)
def hold_again(path: str, gate: str) -> str:
    """As `hold`, which may be run again when its worker was lost."""
    write(path, f"begins in {os.getpid()}")
    until_there(gate)
    return MINE


@task
def rest_and_stop(seconds: float, path: str, number: int) -> float:
    """As `rest`; once so many have begun, their worker stops itself, and waits for a SIGCONT."""
    write(path, f"begins in {os.getpid()}")
    if len(Path(path).read_text(encoding="utf-8").splitlines()) >= number:
        with contextlib.suppress(FileExistsError), open(f"{path}.stops", "x", encoding="utf-8"):
            os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(seconds)
    return seconds


@task
def stubborn(seconds: float, path: str) -> None:
    """Lets nothing but a hard limit stop it."""
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
    """Cleans up when its soft limit is over."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(0.02)
    except Exception as error:
        return f"cleaned up after {type(error).__name__}"
    return "was never stopped"


@task
async def wait(seconds: float, clean: bool = False) -> str:
    """A coroutine, which Celery's workers cannot run; it cleans up when its soft limit is over, or
    is stopped by that.
    """
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
    """Which kind of worker runs it; it waits until both kinds have begun one."""
    for kind in ("begun", MINE):
        Path(folder, kind).touch()
    for kind in ("wbengine", "celery"):
        until_there(f"{folder}/{kind}")
    return MINE


@task
def joined(values: Sequence[Any]) -> list[Any]:
    """The body of a chord: what it got, in its order, and which kind of worker runs it."""
    return [MINE, list(values)]


@task
def about(self: Any) -> dict[str, Any]:
    """What it is told of itself."""
    found = self.request if MINE == "celery" else wire.current()
    names = ("id", "root_id", "parent_id", "group", "group_index", "retries", "correlation_id")
    told = {name: getattr(found, name) for name in names}
    return {**told, "stamps": dict(found.stamps or {}), "extra": extra(found)}


def extra(found: Any) -> Any:
    """A header of a user's own."""
    return found.get("color") if MINE == "celery" else found.extra.get("color")


@task
def flaky(self: Any, path: str, times: int, most: int = 3) -> int:
    """Asks to be run again, so often."""
    write(path, "ran")
    ran = len(Path(path).read_text(encoding="utf-8").splitlines())
    if ran > times:
        return ran
    if MINE == "celery":
        raise self.retry(countdown=0.05, max_retries=most, exc=Odd("too often", ran))
    raise wire.Retry(countdown=0.05, max_retries=most, exc=Odd("too often", ran))
