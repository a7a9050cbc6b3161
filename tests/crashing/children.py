"""Processes that are killed: forks of one process that has imported all modules and runs no
threads.

A fork takes a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wbengine._concurrency import crash_points

_PR_SET_PDEATHSIG = 1

#: Seconds after which a process counts as hung: it writes its stacks and exits with `HUNG`.
PATIENCE = 60.0


#: The crash point before each save of a flow.
_SAVE = "storage.before-save"


@dataclass(frozen=True)
class Kill:
    """A SIGKILL when a process reaches `point` for the `hit`-th time."""

    point: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.point}#{self.hit}"


class Hits:
    """Counts the crash points that a process reaches, and kills it at one of them."""

    def __init__(self, kill: Kill | None = None) -> None:
        self.counts: Counter[str] = Counter()
        #: Maximum number of seconds between two saves of a flow.
        self.rest = 0.0
        self._kill = kill
        self._saved = time.monotonic()

    def install(self) -> None:
        crash_points.install(self._hit)

    def save(self) -> None:
        """Record the time of a save, or of the end."""
        before, self._saved = self._saved, time.monotonic()
        self.rest = max(self.rest, self._saved - before)

    def _hit(self, point: str) -> None:
        self.counts[point] += 1
        if point == _SAVE:
            self.save()
        kill = self._kill
        if kill is not None and point == kill.point and self.counts[point] >= kill.hit:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # other threads can still run until the process ends; this one must not


def fork(work: Callable[[], None], log: Path, patience: float = PATIENCE) -> int:
    """Run `work` in a child, which dies with this process, and append its output to `log`."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        log_to_stderr()
        faulthandler.dump_traceback_later(patience, exit=True, file=sys.stderr)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends in any way, and end if it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def wait(pid: int) -> int:
    """Wait for a child. Return its exit code, or minus the number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Kill a child of this process and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def ended(pid: int, within: float) -> int | None:
    """Return the exit code of a child like `wait`, or None if it does not end in time."""
    watched = os.pidfd_open(pid)
    try:
        if not select.select([watched], [], [], max(0.0, within))[0]:
            return None
    finally:
        os.close(watched)
    return wait(pid)


def stop(pid: int, seconds: float = 60.0) -> int:
    """Send SIGTERM, and return the exit code; minus the number of the signal that killed it.

    A child that does not end in time receives SIGUSR1, to write its stacks, and is killed.
    """
    os.kill(pid, signal.SIGTERM)
    code = ended(pid, seconds)
    if code is None:
        os.kill(pid, signal.SIGUSR1)
        if ended(pid, 0.3) is None:
            kill(pid)
        return -signal.SIGKILL
    return code


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Poll a condition that depends on other processes."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)


class Clean:
    """Words that must not occur in logs."""

    WORDS: tuple[str, ...] = ("Traceback", "ERROR", "CRITICAL")

    @classmethod
    def problems(cls, logs: Mapping[str, Path]) -> list[str]:
        return [
            f"{name} says: {line[:300]}"
            for name, log in logs.items()
            if log.exists()
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
            if any(word in line for word in cls.WORDS)
        ]
