"""Worker processes for the length of one run, with a broker and an exchange of their own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing_extensions import Self

TOPIC: Final = "census"
TASKS: Final = "wbengine.examples.census.tasks"

_START_TIMEOUT: Final = 60.0  # seconds until all workers must be ready
_LOOK: Final = 0.2  # seconds between two looks at the processes
_STOP_TIMEOUT: Final = 10.0  # seconds that they get to end by themselves


class Unavailable(Exception):
    """There is no broker, or there are no workers; the message is one line."""


class Fleet:
    """Starts `size` workers in a `with` block, and stops them and removes their folder at its end.

    The broker is a private folder.  The workers' output goes to files in it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.exchange = f"census-{uuid.uuid4().hex[:12]}"
        self.url = ""
        self._folder: Path | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="wbengine-census-"))
        try:
            broker = self._folder / "broker"
            broker.mkdir(mode=0o700)
            self.url = f"filesystem://{broker}"
            for number in range(self.size):
                with self._log(number).open("wb") as log:
                    self._workers.append(self._start(log))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def wait(self, executor: Any) -> None:
        """Wait until `executor` hears from all workers.

        :raises Unavailable: one is gone.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while missing := executor.wait_for_workers(self.size, timeout=_LOOK):
            for number, worker in enumerate(self._workers):
                if (code := worker.poll()) is not None:
                    raise Unavailable(
                        f"worker {number + 1} ended with exit code {code} before it was ready"
                        f"{self._last_words(number)}"
                    )
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{missing} of {self.size} workers not ready after {_START_TIMEOUT:.0f} s"
                    f"{self._last_words(self.size - 1)}"
                )

    def stop(self) -> None:
        """Ask all workers to end, end them if they do not, and remove the folder.  Idempotent.

        Not to be disturbed by an impatient second Ctrl-C: it would leave processes behind.
        """
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            for worker in self._workers:
                worker.terminate()
            deadline = time.monotonic() + _STOP_TIMEOUT
            for worker in self._workers:
                try:
                    worker.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()
            self._workers.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "wbengine.worker", "--url", self.url]
        command += ["--exchange", self.exchange, "--topic", TOPIC, "--tasks", TASKS]
        command += ["--threads", "1"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )

    def _log(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"worker-{number + 1}.log"

    def _last_words(self, number: int) -> str:
        lines = self._log(number).read_text("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last}" if last else ""
