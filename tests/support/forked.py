"""A process that another process forked, and that is not a child of the test."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.support import workers


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
