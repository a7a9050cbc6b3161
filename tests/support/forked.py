"""A process that another one forked for a test: it is nobody's child here."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.support import workers


class Forked:
    """Known by its id, and by the file that it writes to."""

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
        """What it wrote."""
        if not self._log.exists():
            return ""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        self.signal(signal.SIGKILL)
        workers.until(lambda: not self.lives)
