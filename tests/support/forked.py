"""Processes that another process forked, and that are not children of the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import python, workers


class Forked:
    """A process, given by its id and its log file."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log

    @property
    def lives(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    @property
    def text(self) -> str:
        """Return the content of the log."""
        if not self._log.exists():
            return ""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process by SIGKILL and wait for its end."""
        self.signal(signal.SIGKILL)
        workers.until(lambda: not self.lives)


class ForkServer:
    """A process that runs a module of the tests, reads orders and forks a process for each."""

    def __init__(self, folder: Path, module: str, variables: Mapping[str, str]) -> None:
        self._folder = folder
        self._errors = (folder / "side.log").open("wb")
        self._process = python.start(
            ["-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            cwd=workers.REPOSITORY, env={**os.environ, **variables}, text=True,
        )  # fmt: skip
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self._folder / "side.log").read_text(encoding="utf-8")
        return line

    def order(self, what: str, **order: Any) -> tuple[int, Path]:
        """Send an order and return the id and the log file of the forked process."""
        log = self._folder / f"{what}-{uuid.uuid4().hex[:6]}.log"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'do': what, 'log': str(log), **order})}\n")
        self._process.stdin.flush()
        return int(self._line()), log

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()
