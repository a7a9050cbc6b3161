"""Workers and engines of TaskFlow, and wbengine workers, in separate processes."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kombu.utils import json as kombu_json

from tests.interop import tasks
from tests.support import workers
from tests.support.forked import Forked, ForkServer

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


class TaskFlow(ForkServer):
    """The process with TaskFlow that forks all others; it starts in about a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tests.interop.taskflow_side", {tasks.SIDE: "taskflow"})

    @contextlib.contextmanager
    def worker(
        self, url: str, topic: str = TOPIC, threads: int = 2, exchange: str = "default", **more: Any
    ) -> Iterator[Forked]:
        """Yield a worker; kill it afterwards."""
        order = {"topic": topic, "threads": threads, "exchange": exchange, **more}
        peer = Forked(*self.order("work", url=str(url), **order))
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
        pid, log = self.order("run", url=str(url), **order)
        peer = Engine(pid, log, into)
        try:
            yield peer
        finally:
            peer.signal(signal.SIGCONT)
            peer.kill()


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
