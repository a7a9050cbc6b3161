"""Tasks that tests run on workers. Like tasks of workers, the module imports no flow."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from wbengine import task


class Nothing(task.Task):
    def execute(self) -> None:
        return None


class Add(task.Task):
    default_provides = "sum"

    def execute(self, x: int, y: int) -> int:
        return x + y


class Double(task.Task):
    default_provides = "double"

    def execute(self, sum: int) -> int:
        return 2 * sum


class Echo(task.Task):
    default_provides = "echo"

    def execute(self, value: Any) -> Any:
        return value


class Progressing(task.Task):
    default_provides = "steps"

    def execute(self) -> int:
        for step in range(1, 5):
            self.update_progress(step / 4)
        return 4


class WriteFile(task.Task):
    """Writes a file when executed and deletes it when reverted."""

    default_provides = "written"

    def execute(self, path: str) -> str:
        Path(path).write_text("here", encoding="utf-8")
        return path

    def revert(self, result: Any, flow_failures: Any, path: str) -> None:
        Path(f"{path}.reverted").write_text(f"{result}|{sorted(flow_failures)}", encoding="utf-8")
        Path(path).unlink()


class Appends(task.Task):
    """Appends a line to a file for each execution and reversion."""

    def execute(self, path: str) -> str:
        append(path, f"+{self.name}")
        return self.name

    def revert(self, result: Any, flow_failures: Any, path: str) -> None:
        append(path, f"-{self.name}")


def append(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")


class Fail(task.Task):
    def execute(self) -> None:
        raise ValueError("this went wrong")  # the line that raised


class Exit(task.Task):
    def execute(self) -> None:
        sys.exit(3)


class Socket(task.Task):
    def execute(self) -> Any:
        with socket.socket() as culprit:
            return {"a": [1, 2, 3, culprit]}


class Die(task.Task):
    def execute(self) -> None:
        os._exit(9)


class WaitFor(task.Task):
    """Writes a file when it starts, and waits until another file exists."""

    default_provides = "waited"

    def execute(self, started: str, release: str) -> str:
        Path(started).write_text(str(os.getpid()), encoding="utf-8")
        while not Path(release).exists():
            time.sleep(0.01)
        return "released"


def meeting(folder: Path) -> tuple[WaitFor, WaitFor]:
    """Return two tasks that complete only if they run at the same time."""
    one, other = str(folder / "one"), str(folder / "other")
    return (
        WaitFor("one", provides="one", inject={"started": one, "release": other}),
        WaitFor("other", provides="other", inject={"started": other, "release": one}),
    )


class NeedsMore(task.Task):
    def __init__(self, name: str | None = None, *, colour: str) -> None:
        super().__init__(name=name)
        self.colour = colour

    def execute(self) -> str:
        return self.colour


@task.task(provides="greeting")
def greet(name: str) -> str:
    return f"hello {name}"
