"""Tasks that record each of their runs with the id and the epoch of its request."""

from __future__ import annotations

import os
import time
from pathlib import Path

from wbengine import task
from wbengine._concurrency.crash_points import crashpoint


class Audited(task.Task):
    """Adds one to a number, after `nap` seconds."""

    def execute(self, folder: str, value: int, nap: float = 0.0) -> int:
        line = f"{self.name} {self.request.id} {self.request.epoch}\n"
        # A single write to a file opened with O_APPEND: lines do not mix and survive the process.
        file = os.open(f"{folder}/runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)
        crashpoint("task.began")
        time.sleep(nap)
        return value + 1


class Once(Audited):
    idempotent = False
    default_provides = "once"


class Again(Audited):
    idempotent = True
    default_provides = "again"


class Large(Once):
    """Returns a result of a hundred kilobytes."""

    def execute(self, folder: str, value: int) -> str:  # type: ignore[override]
        return str(super().execute(folder, value)) * 100_000


class Busy(Once):
    """Computes for `nap` seconds without sleeping."""

    def execute(self, folder: str, value: int, nap: float = 0.0) -> int:
        end = time.monotonic() + nap
        while time.monotonic() < end:
            sum(range(1000))
        return super().execute(folder, value)


def runs(folder: Path, task: str) -> list[tuple[str, int]]:
    """Return the request id and the epoch of each run of a task, in order."""
    path = folder / "runs"
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines]
    return [(id, int(epoch)) for name, id, epoch in words if name == task]
