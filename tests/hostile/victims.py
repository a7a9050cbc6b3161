"""A worker and an engine that receive hostile messages, with their counters and logs."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile import inputs
from tests.hostile.gates import Gated
from tests.seams import server
from tests.support import workers
from tests.support.sample_tasks import Add, Double, Nothing
from wbengine import engines
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.engines.worker_based.worker import Worker
from wbengine.patterns import linear_flow, unordered_flow

TOPIC = "t"


class Ear(logging.Handler):
    """Counts log records, and keeps errors."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.lines[f"{record.module}: {record.msg}"] += 1
        short = f"{record.levelname} {record.module}: {text[:200]!r}"
        if record.exc_info or record.levelno >= logging.ERROR:
            why = repr(record.exc_info[1])[:200] if record.exc_info else ""
            self.problems[f"{record.module}: {record.msg} {why}"] += 1
        if len(text) > 1200 or not text.isprintable():
            self.problems[f"no line to be read: {short}"] += 1

    def close(self) -> None:
        logging.getLogger("wbengine").removeHandler(self)
        super().close()


@contextlib.contextmanager
def listening() -> Iterator[Ear]:
    """Capture all log records of wbengine during the block, without propagation."""
    ear = Ear()
    log = logging.getLogger("wbengine")
    before = log.propagate, log.level
    log.addHandler(ear)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield ear
    finally:
        log.propagate, _ = before
        log.setLevel(before[1])
        ear.close()


class Target:
    """A process with queues that counts each message once."""

    name: str
    queues: tuple[str, ...]
    victim: inputs.Victim

    def counted(self) -> Counter[str]:
        """Return the number of received messages by result."""
        raise NotImplementedError

    def ends(self) -> int:
        """Return the number of handled replies or requests, summed over the counters of their
        results.
        """
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Return whether a received message is still processed."""
        return False

    def seen(self) -> int:
        return sum(self.counted().values())


def _counted(proxy: Any) -> Counter[str]:
    dispatcher = proxy.dispatcher
    counts = Counter({f"refused {why}": count for why, count in dispatcher.refused.items()})
    counts.update({f"handled {kind}": count for kind, count in dispatcher.handled.items()})
    return counts


class WorkerTarget(Target):
    name = "worker"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.queues = (worker.identity, *worker.queues.values())
        self.victim = inputs.Victim("worker", inputs.WORKER, server.ledger_of(worker))

    def counted(self) -> Counter[str]:
        return _counted(self.worker._proxy)

    @property
    def busy(self) -> bool:
        return self.worker._runner.busy

    def ends(self) -> int:
        """Return the number of requests that ended, with any result."""
        return sum(self.worker.counts.values())


class EngineTarget(Target):
    name = "engine"

    def __init__(self, executor: WorkerTaskExecutor) -> None:
        self.executor = executor
        self.queues = (executor.uuid,)
        self.victim = inputs.Victim("engine", inputs.ENGINE)

    def counted(self) -> Counter[str]:
        return _counted(self.executor._proxy)

    def knows(self, identity: str) -> bool:
        """Return whether the engine has discovered a worker."""
        return any(worker.identity == identity for worker in self.executor.workers())

    def ends(self) -> int:
        return sum(self.executor.ignored.values())


@contextlib.contextmanager
def worker(url: str) -> Iterator[WorkerTarget]:
    tasks = (Nothing, Add, Double, Gated)
    with workers.worker_in_thread(url, *tasks, topic=TOPIC, threads_count=2) as started:
        yield WorkerTarget(started)


@contextlib.contextmanager
def engine(url: str) -> Iterator[EngineTarget]:
    executor = WorkerTaskExecutor(f"engine-{uuid.uuid4().hex[:8]}", "default", url=url)
    executor.start()
    try:
        yield EngineTarget(executor)
    finally:
        executor.stop()


def work(url: str, executor: WorkerTaskExecutor | None = None, width: int = 5) -> None:
    """Run a flow and check its results."""
    flow = linear_flow.Flow("sum").add(
        unordered_flow.Flow("many").add(*(Nothing(name=f"n{i}") for i in range(width))),
        Add(),
        Double(),
    )
    where: dict[str, Any] = {"url": url} if executor is None else {"executor": executor}
    loaded = engines.load(
        flow, engine="worker-based", store={"x": 1, "y": 2}, transition_timeout=60, **where
    )
    done = threading.Thread(target=loaded.run, daemon=True)
    done.start()
    done.join(90)
    assert not done.is_alive(), "a flow does not end"
    assert loaded.storage.fetch("double") == 6


def settled(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
