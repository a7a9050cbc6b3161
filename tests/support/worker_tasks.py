"""Tasks and exception handlers for tests of the lifetime of workers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from wbengine import task

#: Variable with the path of the file to which handlers write.
CALLS = "WBENGINE_TEST_CALLS"


class Where(task.Task):
    """Returns the process and thread that ran it, after `rest` seconds."""

    default_provides = "where"

    def execute(self, rest: float = 0.0) -> tuple[int, str]:
        time.sleep(rest)
        return os.getpid(), threading.current_thread().name


class Touch(task.Task):
    """Creates a file."""

    def execute(self, path: str) -> None:
        Path(path).touch()


class Patient(task.Task):
    """Waits until it is cancelled, or for half a minute."""

    default_provides = "patience"

    def execute(self, started: str) -> str:
        Path(started).touch()
        for _ in range(3000):
            if self.cancelled:
                Path(f"{started}.cancelled").touch()
                return "cancelled"
            time.sleep(0.01)
        return "waited"


class Deaf(task.Task):
    """Waits for half a minute and ignores all exceptions."""

    timelimit = (None, 0.2)

    def execute(self, started: str) -> None:
        Path(started).touch()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(Exception):
                time.sleep(0.01)


class Bad(task.Task):
    def execute(self) -> None:
        raise ValueError("bad as ever")


def note(*words: Any) -> None:
    with open(os.environ[CALLS], "a", encoding="utf-8") as file:
        file.write(" ".join(map(str, words)) + "\n")


def first(request: Any, kind: Any, value: Any, traceback: Any) -> None:
    name = kind.__name__ if kind is not None else None
    note("first", request.task, os.getpid(), name, value, request.failure.exception_str)
    raise RuntimeError("a handler that fails")


def last(request: Any, *info: Any) -> bool:
    note("last", request.action)
    return False


def never(request: Any, *info: Any) -> None:
    note("never")
