"""Workers for tests, in processes and threads. They are always stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import python
from tests.support.waiting import until
from wbengine.testing._workers import worker_in_thread

__all__ = [
    "REPOSITORY",
    "WorkerProcess",
    "command",
    "interrupted",
    "is_interrupted",
    "until",
    "worker_in_thread",
    "workers",
]

REPOSITORY = Path(__file__).resolve().parents[2]


def interrupted(step: int, call: Callable[[], object]) -> bool:
    """Call `call` with a `KeyboardInterrupt` at the `step`th entry or exit of a function.

    Only functions of wbengine, and those that they call directly, count.
    """
    left = step

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        frame.f_trace_lines = False
        if frame.f_code.co_name in ("__del__", "_remove"):
            return None  # finalizers would discard the exception
        if any("/wbengine/" in f.f_code.co_filename for f in (frame, frame.f_back)):
            left -= event in ("call", "return")
            if left == 0:
                raise KeyboardInterrupt
        return trace

    return is_interrupted(trace, call)


def is_interrupted(trace: Callable[[Any, str, Any], Any], call: Callable[[], object]) -> bool:
    """Return whether a call ends with a `KeyboardInterrupt`, which `trace` may raise."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def command(*arguments: str, warnings: str = "error") -> list[str]:
    """Return the arguments of Python for a worker."""
    return ["-W", warnings, "-m", "wbengine.worker", *arguments]


class WorkerProcess:
    """One process `python -m wbengine.worker` with its log in a file."""

    def __init__(
        self,
        log: Path,
        arguments: Sequence[str],
        env: dict[str, str],
        cwd: Path,
        warnings: str = "error",
        real: bool = False,
    ) -> None:
        self.log = log
        words = command(*arguments, warnings=warnings)
        with log.open("wb") as stream:
            self.process = python.start(
                words, real=real, stdout=stream, stderr=stream, env=env, cwd=cwd
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 60) -> int:
        return self.process.wait(timeout)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def workers(
    folder: Path,
    *arguments: str,
    count: int = 1,
    cwd: Path = REPOSITORY,
    environment: dict[str, str] | None = None,
    warnings: str = "error",
    real: bool = False,
) -> Iterator[list[WorkerProcess]]:
    """Run `count` workers with the same arguments, and stop them at the end in any case."""
    env = {**os.environ, **(environment or {})}
    started: list[WorkerProcess] = []
    try:
        for _ in range(count):
            log = folder / f"worker-{uuid.uuid4().hex[:6]}.log"
            started.append(WorkerProcess(log, arguments, env, cwd, warnings, real))
        yield started
    finally:
        for worker in started:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
                worker.process.kill()
            worker.process.wait()
