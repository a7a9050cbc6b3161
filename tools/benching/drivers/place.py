"""Where a driver and its workers meet, and how the workers are started and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_told: dict[str, Any] = json.loads(os.environ.get("BENCH_PLACE", "{}"))

#: 'redis', 'amqp', 'filesystem'; or 'serial' and 'parallel', which need no workers.
MEDIUM: str = _told.get("medium", "")
#: The broker; '' for folders.
URL: str = _told.get("url", "")
#: A Redis for results, for those that cannot send them through the broker.
RESULTS: str = _told.get("results", "")
#: An empty folder.
FOLDER = Path(_told.get("folder", "."))
#: What tells apart the ways in which one system is measured.
VARIANT: str = _told.get("variant", "")
#: How many tasks run at once.
SLOTS: int = _told.get("slots", 4)

LOCAL = MEDIUM in ("serial", "parallel")
#: When the first of the workers was started.
started: list[float] = []
#: Seconds after which a result that does not come is given up.
PATIENCE = 300


def folders() -> dict[str, Any]:
    """The options of kombu's filesystem transport, which by itself looks once a second."""
    box = FOLDER / "box"
    box.mkdir(exist_ok=True)
    return {"data_folder_in": str(box), "data_folder_out": str(box),
            "control_folder": str(FOLDER / "control"), "polling_interval": 0.01}  # fmt: skip


class Workers:
    """The processes that do the work."""

    def __init__(self, *commands: list[str]) -> None:
        """`commands`: what Python is to run, without its name."""
        here = Path(__file__).resolve().parent
        self._processes = []
        started.append(time.perf_counter())
        for command in commands:
            with (FOLDER / "worker.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, *command], stdin=subprocess.DEVNULL,
                        stdout=log, stderr=log, cwd=here,
                    )
                )  # fmt: skip

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def check(found: Any, wanted: Any) -> None:
    """See that a run did what it was to do.

    :raises RuntimeError: when it did not.
    """
    if found != wanted:
        raise RuntimeError(f"the result is {found!r:.80}, not {wanted!r:.80}")
