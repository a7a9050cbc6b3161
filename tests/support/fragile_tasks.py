"""Tasks that kill or stop their worker. They record their runs in a file that survives it."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

from tests.support.resuming_tasks import note, runs
from wbengine import task
from wbengine.steps import Steps
from wbengine.types import codec

__all__ = [
    "Keyed", "Killer", "Mortal", "Once", "Reader", "Sleeper", "Undone", "Venom", "keyed", "runs",
]  # fmt: skip


class Killer(task.Task):
    """Kills each worker that runs it, until the file `mended` exists."""

    idempotent = True

    def execute(self, folder: str) -> None:
        note(folder, f"execute-{os.getpid()}")
        if not Path(folder, "mended").exists():
            os.kill(os.getpid(), signal.SIGKILL)


@codec.allow
@dataclasses.dataclass(frozen=True)
class Venom:
    """Kills each process that hashes it, except one."""

    folder: str
    spared: int

    def __hash__(self) -> int:
        if os.getpid() != self.spared:
            note(self.folder, f"read-{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)
        return 0


class Reader(task.Task):
    """Does nothing; the decoding of its argument can kill the worker."""

    idempotent = True

    def execute(self, venom: object) -> None:
        """Do nothing."""


class Mortal(task.Task):
    """Kills the first worker that runs it, and no other."""

    idempotent = True

    def execute(self, folder: str, number: int = 0) -> int:
        note(folder, f"execute-{self.name}")
        try:
            Path(folder, f"killed-{Path(self.name).name}").touch(exist_ok=False)
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
        return -1


class Keyed(Mortal):
    """A `Mortal` that records its request, and its reversion."""

    def execute(self, folder: str, number: int = 0) -> int:
        assert self.request is not None
        note(folder, self.request.id)
        return super().execute(folder, number)

    def revert(self, folder: str, **rest: object) -> None:
        note(folder, "revert")


@task.workflow
def keyed(steps: Steps, folder: str) -> int:
    number: int = steps.run(Keyed, folder)
    return number


class Once(Mortal):
    """A `Mortal` that is not idempotent."""

    idempotent = False


class Undone(task.Task):
    """Its first reversion kills the worker. A later failure in the flow reverts it."""

    idempotent = True

    def execute(self, folder: str) -> None:
        note(folder, "execute")

    def revert(self, folder: str, **rest: object) -> None:
        note(folder, "revert")
        try:
            Path(folder, "killed-revert").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Sleeper(task.Task):
    """Stops the first worker that runs it in the middle of the task, until SIGCONT."""

    idempotent = True

    def execute(self, folder: str) -> str:
        note(folder, f"execute-{os.getpid()}")
        try:
            Path(folder, "slept").touch(exist_ok=False)
        except FileExistsError:
            return "second"
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.1)
        return "first"
