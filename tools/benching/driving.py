"""Drivers: processes in the environment of one system that run cases on request."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.benching import processes
from tools.benching.systems import System

DRIVERS = Path(__file__).resolve().parent / "drivers"
#: Maximum time in seconds to start the workers and complete a first task.
START_SECONDS = 60.0


class Failed(Exception):
    """The driver could not complete a request; the text contains the reason."""


class Driver:
    """One system on one medium with its workers, until `close`.

    :raises Failed: if its workers do not complete a task in time.
    """

    def __init__(self, system: System, python: str, place: Mapping[str, Any]) -> None:
        self._log = Path(place["folder"]) / "driver.log"
        environment = {
            **os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        for name in [*environment]:
            if name in ("PYTHONPATH", "PYTHONHOME") or name.startswith(("WBENGINE_", "CELERY_")):
                del environment[name]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(DRIVERS / "drive.py"), system.driver],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                cwd=DRIVERS, env=environment, bufsize=0, start_new_session=True,
            )  # fmt: skip
        self._output = b""
        self._stuck = False
        try:
            answer = self.ask(START_SECONDS, do="open", place={**place, "variant": system.variant})
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = answer["versions"]
        #: Seconds from the start of its worker to its first result; None without a worker.
        self.ready: float | None = answer["ready"]

    def run(self, case: str, sizes: Mapping[str, int], patience: float) -> dict[str, Any]:
        """Run a case and return its figures in seconds.

        These are the duration, the processor times of the driver (`caller`) and the workers, and
        the delays of the tasks.

        :raises Failed: if the run fails or does not end in time.
        """
        before = processes.processor(self.workers)
        answer = self.ask(patience, do="run", case=case, sizes=sizes)
        return {**answer, "workers": processes.processor(self.workers) - before}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """The processes of its workers."""
        return processes.tree(self._process.pid)[1:]

    def ask(self, patience: float, **order: Any) -> dict[str, Any]:
        """Send a request and return the answer, at most `patience` seconds later."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._line(time.monotonic() + patience, patience))
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _line(self, deadline: float, patience: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._output:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self._stuck = True
                    raise Failed(f"not done after {patience:g} s")
                read = os.read(self._process.stdout.fileno(), 65536)
                if not read:
                    raise Failed(f"its driver died: {self._last_log_line()}")
                self._output += read
        line, _, self._output = self._output.partition(b"\n")
        return line

    def _last_log_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1][:200] if lines else "it said nothing"

    def close(self) -> None:
        """End the driver and its workers gracefully, otherwise by SIGKILL."""
        assert self._process.stdin is not None and self._process.stdout is not None
        family = processes.tree(self._process.pid)
        self._process.stdin.close()
        if not self._stuck:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        # The remaining processes lost their parent and are identified only by their number.
        processes.kill(pid for pid in family if self._is_own(pid))
        self._process.wait()
        self._process.stdout.close()

    def _is_own(self, pid: int) -> bool:
        """Return whether the process is one of the driver's, and its number was not reused."""
        with contextlib.suppress(OSError):
            return str(DRIVERS).encode() == os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
        return False
