"""A driver: a process in the environment of one system, which does what it is told."""

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
#: Seconds that it has to start its workers and have something done by them.
OPENING = 60.0


class Failed(Exception):
    """It could not do what it was told; the text says why."""


class Driver:
    """One system on one medium, with its workers, until `close`.

    :raises Failed: when its workers do not come to do anything.
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
        self._said = b""
        self._stuck = False
        try:
            told = self.ask(OPENING, do="open", place={**place, "variant": system.variant})
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = told["versions"]
        #: Seconds from when its worker was started until it had done something; None without one.
        self.ready: float | None = told["ready"]

    def run(self, case: str, sizes: Mapping[str, int], patience: float) -> dict[str, float]:
        """Seconds of one run, and processor seconds of the driver (`caller`) and of its workers.

        :raises Failed: when it did not end well, or in time.
        """
        before = processes.processor(self.workers)
        told = self.ask(patience, do="run", case=case, sizes=sizes)
        return {**told, "workers": processes.processor(self.workers) - before}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """The processes of its workers."""
        return processes.tree(self._process.pid)[1:]

    def ask(self, patience: float, **order: Any) -> dict[str, Any]:
        """Have something done, within so many seconds; what it tells of that."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        told: dict[str, Any] = json.loads(self._line(time.monotonic() + patience, patience))
        if "error" in told:
            raise Failed(told["error"])
        return told

    def _line(self, deadline: float, patience: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self._stuck = True
                    raise Failed(f"not done after {patience:g} s")
                read = os.read(self._process.stdout.fileno(), 65536)
                if not read:
                    raise Failed(f"its driver died: {self._last()}")
                self._said += read
        line, _, self._said = self._said.partition(b"\n")
        return line

    def _last(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1][:200] if lines else "it said nothing"

    def close(self) -> None:
        """End it and its workers, in their own manner, else by SIGKILL."""
        assert self._process.stdin is not None and self._process.stdout is not None
        family = processes.tree(self._process.pid)
        self._process.stdin.close()
        if not self._stuck:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        # Whoever is left has lost its parent, so it is known by its number only.
        processes.kill(pid for pid in family if self._ours(pid))
        self._process.wait()
        self._process.stdout.close()

    def _ours(self, pid: int) -> bool:
        """Whether this is still one of them, and not somebody who was given the number since."""
        with contextlib.suppress(OSError):
            return str(DRIVERS).encode() == os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
        return False
