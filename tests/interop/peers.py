"""Workers and engines of TaskFlow, and wbengine workers, in separate processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kombu.utils import json as kombu_json

from tests.interop import tasks
from tests.support import workers
from tests.support.forked import Forked

TOPIC = "t"


class Engine(Forked):
    """A TaskFlow engine that runs one flow."""

    def __init__(self, pid: int, log: Path, into: Path) -> None:
        super().__init__(pid, log)
        self._into = into

    def told(self, timeout: float = 60.0, what: str = "it") -> dict[str, Any]:
        """Wait for the end and return the result (see `Run.told`)."""
        deadline = time.monotonic() + timeout
        while not self._into.exists():
            assert time.monotonic() < deadline, f"{what} did not end in time: {self.text}"
            assert self.lives or self._into.exists(), f"{what} ended: {self.text}"
            time.sleep(0.01)
        data: dict[str, Any] = kombu_json.loads(self._into.read_text(encoding="utf-8"))
        return data


class TaskFlow:
    """The process with TaskFlow that forks all others; it starts in about a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._errors = (folder / "side.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.taskflow_side"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            cwd=workers.REPOSITORY, env={**os.environ, tasks.SIDE: "taskflow"}, text=True,
        )  # fmt: skip
        self._line()
        self._made: list[Forked] = []

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self._folder / "side.log").read_text(encoding="utf-8")
        return line

    def _order(self, what: str, url: str, **order: Any) -> tuple[int, Path]:
        log = self._folder / f"{what}-{uuid.uuid4().hex[:6]}.log"
        assert self._process.stdin is not None
        message = {"do": what, "url": str(url), "log": str(log), **order}
        self._process.stdin.write(f"{json.dumps(message)}\n")
        self._process.stdin.flush()
        return int(self._line()), log

    @contextlib.contextmanager
    def worker(
        self, url: str, topic: str = TOPIC, threads: int = 2, exchange: str = "default", **more: Any
    ) -> Iterator[Forked]:
        """Yield a worker; kill it afterwards."""
        order = {"topic": topic, "threads": threads, "exchange": exchange, **more}
        peer = Forked(*self._order("work", url, **order))
        try:
            yield peer
        finally:
            peer.signal(signal.SIGCONT)
            peer.kill()

    @contextlib.contextmanager
    def engine(
        self,
        url: str,
        flow: str,
        store: Mapping[str, Any] | None = None,
        made: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Engine]:
        """Yield an engine that runs one flow; kill it afterwards."""
        into = self._folder / f"told-{uuid.uuid4().hex[:6]}"
        order = {
            "flow": flow,
            "store": kombu_json.dumps(dict(store or {})),
            "made": dict(made or {}),
            "into": str(into),
            "options": {"topics": [TOPIC], **options},
        }
        pid, log = self._order("run", url, **order)
        peer = Engine(pid, log, into)
        try:
            yield peer
        finally:
            peer.signal(signal.SIGCONT)
            peer.kill()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()


@contextlib.contextmanager
def our_worker(
    folder: Path, url: str, *arguments: str, topic: str = TOPIC
) -> Iterator[workers.WorkerProcess]:
    """Yield a wbengine worker that uses TaskFlow's protocol."""
    with workers.workers(
        folder,
        *("--topic", topic, "--interop", "taskflow", "--log-level", "info"),
        *("--tasks", "tests.interop.tasks", *arguments),
        environment={"WBENGINE_URL": str(url)},
    ) as (worker,):
        yield worker
