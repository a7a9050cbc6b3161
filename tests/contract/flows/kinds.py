"""Kinds of engines, each with an executor that serves many flows one after another.

All are strict: they refuse the results that workers refuse.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.workers import until, worker_in_thread, workers
from wbengine import engines
from wbengine._calls import invocation as calls
from wbengine._runtime import executors
from wbengine.engines import base
from wbengine.engines.worker_based import executor as remote
from wbengine.persistence import backends

NAMES = ("serial", "threads", "processes", "memory", "filesystem")

#: Serial engine with records in a folder.
KEPT = "kept"
#: Workers on a database server, which the caller of `on_workers` provides.
DATABASES = ("postgresql", "mysql")


class Kind:
    """Loader of flows into engines of one kind with a shared executor."""

    def __init__(self, name: str, engine: str, options: dict[str, Any]) -> None:
        self.name = name
        self._engine = engine
        self._options = options

    @property
    def executor(self) -> Any:
        """Executor of the tasks; None if each engine has its own."""
        return self._options.get("executor")

    @property
    def remote(self) -> bool:
        """True if tasks run on workers."""
        return self._engine == "worker-based"

    def load(self, flow: Any, **options: Any) -> base.Engine:
        return engines.load(flow, engine=self._engine, **{**self._options, **options})


class InStep(calls.TaskExecutor):
    """Executor that returns results in the order of submission, one batch at a time.

    With `in_step` set, an iteration ends before the next one starts, as on a serial engine.
    """

    in_step = False

    def submit_many(self, invocations: Iterable[calls.Invocation], done: calls.Done) -> None:
        if not self.in_step:
            super().submit_many(invocations, done)
            return
        asked = list(invocations)
        answers: dict[int, calls.Outcome] = {}
        arrived = threading.Semaphore(0)

        def collect(call: calls.Invocation, outcome: calls.Outcome) -> None:
            answers[id(call)] = outcome
            arrived.release()

        super().submit_many(asked, collect)
        for _ in asked:
            assert arrived.acquire(timeout=60), f"{len(answers)} of {len(asked)} answered"
        for call in asked:
            done(call, answers[id(call)])


class Kept(InStep):
    """Executor whose pool outlives the engines.

    With `taken_over` set, an engine may leave calls that it does not own. `stop` waits for them
    and ends the pool and the event loop; the next engine starts new ones.
    """

    taken_over = False
    _pool: Any

    def stop(self) -> None:
        if self.taken_over:
            super().stop()
        assert not self._unfinished, "an engine left something behind"

    @property
    def _unfinished(self) -> int:
        return self._pool.unfinished if self._pool else 0

    def end(self) -> None:
        super().stop()


class KeptThreads(Kept, executors.ThreadTaskExecutor):
    """Threads that outlive the engines they serve."""


class KeptProcesses(Kept, executors.ProcessTaskExecutor):
    """Processes that outlive the engines they serve."""


class KeptRemote(InStep, remote.WorkerTaskExecutor):
    """Workers with one shared connection."""

    taken_over = False


@contextlib.contextmanager
def kind(name: str, folder: Path, tasks: str) -> Iterator[Kind]:
    """Yield one kind with its resources; workers offer the `tasks` of that module."""
    with _MAKERS[name](folder, tasks) as made:
        yield made


@contextlib.contextmanager
def _serial(folder: Path, tasks: str) -> Iterator[Kind]:
    yield Kind("serial", "serial", {"strict_results": True})


@contextlib.contextmanager
def _kept(folder: Path, tasks: str) -> Iterator[Kind]:
    # Use a disk in memory if the host has one.
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(dir=fast) as place,
        backends.backend(f"dir://{place}/store") as backend,
    ):
        yield Kind("kept", "serial", {"strict_results": True, "backend": backend})


@contextlib.contextmanager
def _threads(folder: Path, tasks: str) -> Iterator[Kind]:
    executor = KeptThreads(max_workers=3, strict=True)
    yield Kind("threads", "parallel", {"executor": executor})
    executor.end()


@contextlib.contextmanager
def _processes(folder: Path, tasks: str) -> Iterator[Kind]:
    executor = KeptProcesses(max_workers=2, strict=True)
    yield Kind("processes", "parallel", {"executor": executor})
    executor.end()


@contextlib.contextmanager
def _memory(folder: Path, tasks: str) -> Iterator[Kind]:
    url = f"memory://{folder.name}"
    serving = worker_in_thread(url, tasks, topic="flows", threads_count=3)
    with serving, _remote("memory", url) as remote_kind:
        yield remote_kind


def _filesystem(folder: Path, tasks: str) -> contextlib.AbstractContextManager[Kind]:
    return on_workers("filesystem", f"filesystem://{folder / 'broker'}", folder, tasks)


@contextlib.contextmanager
def on_workers(name: str, url: str, folder: Path, tasks: str) -> Iterator[Kind]:
    """Yield a kind with a worker process that offers the `tasks` of that module."""
    with workers(folder, "--topic", "flows", "--tasks", tasks, "--url", url, "--threads", "3") as [
        process
    ]:
        with _remote(name, url) as remote_kind:
            yield remote_kind
        assert process.stop() == 0, process.text


@contextlib.contextmanager
def _remote(name: str, url: str) -> Iterator[Kind]:
    shared = KeptRemote(name, "default", url=url, transition_timeout=30)
    assert shared.wait_for_workers(1, 30) == 0
    yield Kind(name, "worker-based", {"executor": shared})
    shared.stop()
    until(lambda: not [t for t in threading.enumerate() if name in t.name], 1.0)


_MAKERS: dict[str, Callable[[Path, str], contextlib.AbstractContextManager[Kind]]] = {
    "serial": _serial,
    KEPT: _kept,
    "threads": _threads,
    "processes": _processes,
    "memory": _memory,
    "filesystem": _filesystem,
}
