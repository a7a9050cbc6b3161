"""One incarnation of an engine process: it resumes the remaining flows, and runs new flows until
the
end of the test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import audit, clocks, flows, program, workers
from tests.seams import tracker
from wbengine import engines as loading
from wbengine import exceptions, states
from wbengine._calls import invocation
from wbengine.engines.worker_based import engine as engines
from wbengine.engines.worker_based import executor as executors
from wbengine.persistence import backends, base, models

ENDED = (states.SUCCESS, states.REVERTED)
#: Errors after which a run can be resumed: the broker, ledger or store is unreachable.
PASSING = (
    exceptions.TransportFailure,
    exceptions.LedgerFailure,
    exceptions.StorageFailure,
    exceptions.FlowBusy,
    exceptions.LeaseLost,
)
PAUSE = 0.3
#: Exit code of an engine process that was stopped before the end of the test.
STOPPED = 4


@dataclass(frozen=True)
class Work:
    """The work of all incarnations of one engine process."""

    folder: Path
    number: int
    store: str
    options: Mapping[str, Any]
    #: Number of flows that run at the same time, each in a thread.
    threads: int
    kinds: tuple[str, ...]
    width: int
    seconds: float
    long: float
    #: Whether the engines of the process share one executor.
    shared: bool = False
    clocks: clocks.Clocks | None = None
    clock: int = 0
    control: bool = False

    @property
    def conf(self) -> dict[str, str]:
        if self.store == "dir":
            return {"connection": "dir", "path": str(self.folder / f"engine-{self.number}.store")}
        return {"connection": f"sqlite:///{self.folder}/engine-{self.number}.sqlite"}

    def name(self, index: int) -> str:
        kind = self.kinds[index % len(self.kinds)]
        return flows.name(kind, self.width, f"{self.number}_{index}")

    @property
    def enough(self) -> Path:
        """Return the path of the file that ends the creation of flows."""
        return self.folder / "enough"


def start(work: Work, life: int, build: Path | None = None) -> int:
    """Start the process of this incarnation and return its pid. It exits with 0 after its last
    flow.
    """
    return program.start(run, (work, life), work.folder / f"engine-{work.number}.log", build)


def run(work: Work, life: int) -> None:
    """Run the flows of one incarnation, until the end of the test or until it is stopped."""
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    if work.control:
        from tests.chaos import control

        control.run(work)
        return
    if work.clocks is not None:
        work.clocks.install(work.clock)
    incarnation = _Life(work, life)
    program.handle_stop(incarnation.stop)
    incarnation.run()
    if incarnation.stopping.is_set():
        os._exit(STOPPED)


class Requests:
    """Observer of an executor that writes published and lost requests to the audit file."""

    def publishing(self, tracked: Any, envelope: Any) -> None:
        version = int(envelope.headers.get("wbe-version", 0))
        audit.note(
            audit.PUBLISHED, tracked.invocation.task.name, tracked.id, tracked.epoch, version
        )

    def published(self, tracked: Any, error: BaseException | None) -> None:
        """Do nothing."""

    def settled(self, tracked: Any, outcome: invocation.Outcome, waited: float) -> None:
        if outcome.failed and outcome.value.check(exceptions.WorkerLost):
            audit.note(audit.LOST, tracked.invocation.task.name, tracked.id, tracked.epoch)


class _Life:
    def __init__(self, work: Work, life: int) -> None:
        self._work = work
        self._life = life
        self._lock = threading.Lock()
        self._left: list[str] = []
        self._next = 0
        self._ignored: Counter[str] = Counter()
        self._requests = Requests()
        self._running: set[Any] = set()
        self.stopping = threading.Event()
        self._shared: executors.WorkerTaskExecutor | None = None

    def run(self) -> None:
        work = self._work
        where = {"exchange": workers.EXCHANGE, "topics": [workers.TOPIC]}
        options = {**work.options, **where}
        known = engines.WorkerBasedActionEngine.OPTIONS
        self._options = {key: value for key, value in options.items() if key in known}
        if work.shared:
            taken = {
                *inspect.signature(executors.WorkerTaskExecutor).parameters,
                *tracker.OPTIONS,
            }
            given = {key: value for key, value in options.items() if key in taken}
            name = f"shared-{work.number}-{self._life}"
            self._shared = executors.WorkerTaskExecutor(name, **given)
            self._options = {"executor": self._shared}
        with backends.backend(work.conf) as backend:
            self._look(backend)
            with futures.ThreadPoolExecutor(work.threads) as pool:
                serving = {pool.submit(self._serve, backend) for _ in range(work.threads)}
                while serving:
                    # A signal that arrives just before a wait is handled after it.
                    done, serving = futures.wait(serving, PAUSE, futures.FIRST_COMPLETED)
                    for ended in done:
                        ended.result()
        if self._shared is not None:
            self._count(self._shared)
            self._shared.stop()
        counts = work.folder / f"engine-{work.number}.counts"
        with counts.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._ignored) + "\n")

    def stop(self, signum: int, frame: object) -> None:
        """Suspend the running flows, and start no others."""
        self.stopping.set()
        threading.Thread(target=self._suspend, daemon=True).start()

    def _suspend(self) -> None:
        while True:  # A run may begin after its flow was suspended.
            for engine in tuple(self._running):
                with contextlib.suppress(exceptions.InvalidState):  # It has not begun.
                    engine.suspend()
            time.sleep(PAUSE)

    def _look(self, backend: base.Backend) -> None:
        """Read the flows of earlier incarnations."""
        known = {}
        with contextlib.closing(backend.get_connection()) as connection:
            for book in connection.get_logbooks():
                for detail in book:
                    known[detail.name] = detail.state
        self._next = len(known)
        self._left = [name for name, state in known.items() if state not in ENDED]

    def _take(self, backend: base.Backend) -> str | None:
        """Return the name of a flow to run, whose records exist."""
        with self._lock:
            if self.stopping.is_set():
                return None
            if self._left:
                return self._left.pop()
            if self._work.enough.exists():
                return None
            name = self._work.name(self._next)
            self._next += 1
            book = models.LogBook(name, uuid=name)
            book.add(models.FlowDetail(name, uuid=f"{name}-flow"))
            # The lock is necessary, because the number of books is the number of the next flow.
            with contextlib.closing(backend.get_connection()) as connection:
                connection.save_logbook(book)
            return name

    def _serve(self, backend: base.Backend) -> None:
        while True:
            try:
                name = self._take(backend)
            except exceptions.StorageFailure as error:
                print(f"note: {error}", file=sys.stderr)
                with self._lock:
                    self._next -= 1
                time.sleep(PAUSE)
                continue
            if name is None:
                return
            while not (self.stopping.is_set() or self._ends(name, backend)):
                time.sleep(PAUSE)

    def _ends(self, name: str, backend: base.Backend) -> bool:
        """Run a flow and return whether it has ended."""
        engine: Any = None
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                detail = connection.get_flow_details(f"{name}-flow")
            if detail.state not in ENDED:
                engine = loading.load(
                    flows.make(name),
                    store=flows.store(self._work.seconds, self._work.long),
                    flow_detail=detail,
                    backend=backend,
                    engine="worker-based",
                    **self._options,
                )
                engine.executor.add_observer(self._requests)
                self._running.add(engine)
                audit.note(audit.BEGUN, name)
                engine.run()
        except PASSING as error:
            print(f"note: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            return False
        except (ValueError, exceptions.ExecutionFailure, exceptions.WrappedFailure) as error:
            print(f"note: {name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        finally:
            self._running.discard(engine)
            if engine is not None and self._shared is None:
                self._count(engine.executor)
        state = engine.storage.get_flow_state() if engine is not None else detail.state
        if state not in ENDED:
            return False
        audit.note(audit.FLOW, name, state)
        return True

    def _count(self, executor: Any) -> None:
        with self._lock:
            self._ignored.update(executor.ignored)
