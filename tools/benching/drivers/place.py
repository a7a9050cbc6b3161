"""Configuration of a driver and its workers, and the processes of the workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_arguments: dict[str, Any] = json.loads(os.environ.get("BENCH_PLACE", "{}"))

#: 'redis', 'amqp', 'filesystem', or 'serial' and 'parallel' without workers.
MEDIUM: str = _arguments.get("medium", "")
#: URL of the broker; empty for folders.
URL: str = _arguments.get("url", "")
#: URL of a Redis for results, for systems that cannot send them through the broker.
RESULTS: str = _arguments.get("results", "")
#: An empty folder.
FOLDER = Path(_arguments.get("folder", "."))
#: Variant of the system.
VARIANT: str = _arguments.get("variant", "")
#: Number of tasks that run at a time.
SLOTS: int = _arguments.get("slots", 4)
#: Functions to record in the caller and the worker; only for wbengine.
RECORD: list[str] = _arguments.get("record", [])

LOCAL = MEDIUM in ("serial", "parallel")
#: Start time of the first worker.
started: list[float] = []
#: Maximum wait for a result in seconds.
PATIENCE = 300


def folders() -> dict[str, Any]:
    """Return the options of kombu's filesystem transport, whose default interval is one second."""
    box = FOLDER / "box"
    box.mkdir(exist_ok=True)
    return {"data_folder_in": str(box), "data_folder_out": str(box),
            "control_folder": str(FOLDER / "control"), "polling_interval": 0.01}  # fmt: skip


class Workers:
    """The processes of the workers."""

    def __init__(self, *commands: list[str]) -> None:
        """Start a process for each command, which are arguments of Python."""
        folder = Path(__file__).resolve().parent
        self._processes = []
        started.append(time.perf_counter())
        for command in commands:
            with (FOLDER / "worker.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, *command], stdin=subprocess.DEVNULL,
                        stdout=log, stderr=log, cwd=folder,
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


def check(result: Any, expected: Any) -> None:
    """Check the result of a run.

    :raises RuntimeError: if it is wrong.
    """
    if result != expected:
        raise RuntimeError(f"the result is {result!r:.80}, not {expected!r:.80}")
