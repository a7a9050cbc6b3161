"""A task that runs until a file exists."""

from __future__ import annotations

import time
from pathlib import Path

from wbengine import task


class WaitsForFile(task.Task):
    """A task that creates one file and waits for another."""

    def execute(self, begun: str, go: str) -> None:
        Path(begun).touch()
        until = time.monotonic() + 100
        while not Path(go).exists() and time.monotonic() < until:
            time.sleep(0.01)
