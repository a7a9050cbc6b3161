"""The audit file: one line for each start and end of a task or flow, which survives all processes.

Engines also write a line for each published request, and for each that ended as WorkerLost.

A process appends each line with a single write. Times are those of the monotonic clock, which all
processes of a host share and which no fault changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Environment variable with the path of the file, for processes that import this module.
VARIABLE = "WBENGINE_CHAOS_AUDIT"
STARTED, ENDED, BEGUN, FLOW, PUBLISHED, LOST = "S", "E", "B", "F", "P", "L"

_file = -1


@dataclass(frozen=True)
class Line:
    """A start or end of a task, or of a flow (`BEGUN`, `FLOW`), or a request.

    Lines of flows have only `name`, `state`, `pid` and `at`. `PUBLISHED` requests have a `format`
    instead of an `attempt`.
    """

    what: str
    name: str
    request: str
    epoch: int
    attempt: int
    pid: int
    at: float

    @property
    def state(self) -> str:
        return self.request

    @property
    def format(self) -> int:
        return self.attempt


def begin(path: Path) -> None:
    """Open the file for this process and its later children."""
    global _file
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    _file = os.open(path, flags, 0o600)


def end() -> None:
    global _file
    if _file >= 0:
        os.close(_file)
    _file = -1


def note(what: str, name: str, request: str = "-", epoch: int = 0, attempt: int = 0) -> None:
    line = f"{what} {name} {request} {epoch} {attempt} {os.getpid()} {time.monotonic():.6f}\n"
    os.write(_file, line.encode())


def parse(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        what, name, request, epoch, attempt, pid, at = line.split(" ")
        yield Line(what, name, request, int(epoch), int(attempt), int(pid), float(at))


class Reader:
    """Reads the lines that were added since the last call."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  (closed by `close`)
        self._rest = b""

    def more(self) -> list[Line]:
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return list(parse(b"\n".join(whole).decode()))

    def close(self) -> None:
        self._file.close()


if VARIABLE in os.environ:
    begin(Path(os.environ[VARIABLE]))
