"""The flows of the histories.

Stored flows refer to these names. They and their results never change.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any, Final

from wbengine import engines, retry, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.types import notifier

#: Variable: if set, `Deadly` and other tasks kill their process.
KILL_VARIABLE: Final = "WBENGINE_HISTORY_KILLS"
#: Variable: folder in which remote tasks record their start. Without it, they end immediately.
MARKERS_VARIABLE: Final = "WBENGINE_HISTORY_FOLDER"
SIGNAL: Final = "approved"


class Number(task.Task):
    default_provides = "number"

    def execute(self) -> int:
        return 20

    def revert(self, **_: Any) -> None:
        pass


class Double(task.Task):
    def execute(self, number: int) -> int:
        return 2 * number


class Deadly(task.Task):
    """Kills its process in the program that writes the histories."""

    def execute(self, number: int) -> int:
        if KILL_VARIABLE in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return number + 1


class Square(task.Task):
    def execute(self, item: int) -> int:
        if item == 5 and KILL_VARIABLE in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item


class Fails(task.Task):
    def execute(self) -> None:
        raise ValueError("fails always")


class CannotRevert(task.Task):
    def execute(self) -> None:
        pass

    def revert(self, **_: Any) -> None:
        raise OSError("cannot revert")


class Unstable(task.Task):
    """Fails in the first attempt, and is `Deadly` in the second one."""

    def execute(self, number: int, attempt: int) -> int:
        if attempt == 1:
            raise ConnectionError("first attempt")
        if KILL_VARIABLE in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return number + attempt


class Remote(task.Task):
    """A task of a worker. With a folder, it creates `NAME.began` and waits for `NAME.ends`."""

    idempotent = True

    def execute(self, number: int) -> str:
        if MARKERS_VARIABLE in os.environ:
            folder = Path(os.environ[MARKERS_VARIABLE])
            (folder / f"{self.name}.began").touch()
            while not (folder / f"{self.name}.ends").exists():
                time.sleep(0.01)
        return f"{self.name} {number}"


@task.task(concurrency=1, provides="licensed")
def licensed(number: int) -> int:
    if KILL_VARIABLE in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return number + 3


def _linear(name: str, *atoms: Any, **options: Any) -> linear_flow.Flow:
    return linear_flow.Flow(name, **options).add(*atoms)


def succeeded() -> Any:
    return _linear("succeeded", Number(), Double(provides="result"))


def reverted() -> Any:
    return _linear("reverted", Number(), Fails())


def failed() -> Any:
    return _linear("failed", Number(), CannotRevert(), Fails())


def suspended() -> Any:
    return _linear("suspended", Number(), Double(provides="result"))


def killed() -> Any:
    return _linear("killed", Number(), Deadly(provides="result"))


def waiting() -> Any:
    return _linear(
        "waiting", Number(), task.WaitFor(SIGNAL, provides="approval"), Double(provides="result")
    )


def retried() -> Any:
    return _linear(
        "retried",
        Number(),
        _linear("attempts", Unstable(provides="result"), retry=retry.Times(5, provides="attempt")),
    )


def mapped() -> Any:
    squares = task.Map(Square(), over="items", item="item", provides="result", max_in_flight=1)
    return _linear("mapped", squares)


def limited() -> Any:
    return _linear("limited", Number(), licensed(provides="result"))


def remote() -> Any:
    tasks = [Remote(name, provides=f"result-{name}") for name in "abcd"]
    return _linear("remote", Number(), unordered_flow.Flow("tasks").add(*tasks))


#: Flows that run in one process, without workers. Some tasks kill it.
LOCAL: Final = {
    factory.__name__: factory
    for factory in (
        succeeded, reverted, failed, suspended, killed, waiting, retried, mapped, limited,
    )
}  # fmt: skip


def uuid_of(name: str) -> str:
    """Return the uuid of the flow with this name in new histories."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def suspend_after_number(engine: engines.Engine) -> None:
    def on_state(state: str, details: dict[str, Any]) -> None:
        if details["task_name"].endswith("Number"):
            engine.suspend()

    engine.atom_notifier.register(notifier.Notifier.ANY, on_state)
