"""Faults on the connections of an engine in this process and of a worker in another process.

Each has its own proxy to the broker (and to the ledger). A fault begins when one of the two reaches
a crash point.

    with broker_faults.stage(MEDIA["redis"], folder, brokers) as stage:
        end = stage.run(Strike("worker", "worker.after-finish", Fault("cut")))
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support import audited_tasks as tasks
from tests.support import python, tcp_proxy
from tests.support.brokers import Broker, Brokers
from tests.support.points import Points
from tests.support.workers import REPOSITORY
from wbengine import engines
from wbengine import exceptions as exc
from wbengine.engines.worker_based import executor as executors
from wbengine.patterns import unordered_flow

Side = Literal["engine", "worker"]

#: Seconds during which bytes are lost before the connection is cut.
LOSS = 1.0
#: Seconds by which bytes are delayed: longer than the timeout of a Redis client (5 s).
LATE = 7.0


@dataclass(frozen=True)
class Medium:
    """The broker that carries requests, and the ledger that contains their rows."""

    name: str
    broker: Literal["redis", "rabbitmq"]
    #: A ledger that is separate from the broker.
    ledger: Literal["", "sqlite", "redis"] = ""
    #: Whether the fault affects the connections to the ledger instead of those to the broker.
    strikes_ledger: bool = False

    @property
    def has_ledger(self) -> bool:
        return self.broker == "redis" or self.ledger != ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Fault:
    """A fault on all connections of one side."""

    kind: Literal["cut", "lose", "delay"]
    direction: tcp_proxy.Direction = "to-server"

    def begin(self, proxies: Sequence[tcp_proxy.Proxy]) -> None:
        for proxy in proxies:
            if self.kind == "cut":
                proxy.cut()
            elif self.kind == "lose":
                proxy.lose(self.direction)
            else:
                proxy.keep(self.direction)

    @property
    def lasts(self) -> float:
        """Return the duration in seconds, if the flow does not end earlier."""
        return {"cut": 0.0, "lose": LOSS, "delay": LATE}[self.kind]

    def end(self, proxies: Sequence[tcp_proxy.Proxy]) -> None:
        for proxy in proxies:
            if self.kind == "lose":
                proxy.cut()
            elif self.kind == "delay":
                proxy.resume()

    def __str__(self) -> str:
        return self.kind if self.kind == "cut" else f"{self.kind}-{self.direction}"


@dataclass(frozen=True)
class Strike:
    """A fault on the connections of one side when it reaches a crash point."""

    side: Side
    point: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.side}-{self.point}-{self.fault}"


@dataclass
class End:
    """The result of a flow."""

    #: Provided values of a successful flow.
    results: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    #: Seconds from the end of the fault to the end of the flow.
    took: float = 0.0
    #: Request id and epoch of each run of the two tasks.
    once: list[tuple[str, int]] = field(default_factory=list)
    again: list[tuple[str, int]] = field(default_factory=list)
    #: Names of the crash points that each side passed.
    passed: dict[Side, list[str]] = field(default_factory=dict)


class Stage:
    """One executor of an engine and one worker, which run flows one after the other."""

    def __init__(
        self,
        medium: Medium,
        folder: Path,
        proxies: dict[Side, list[tcp_proxy.Proxy]],
        worker: _Worker,
        executor: executors.WorkerTaskExecutor,
    ) -> None:
        self.medium = medium
        self.worker = worker
        self._folder = folder
        self._proxies = proxies
        self._executor = executor
        self._number = 0
        self._points = Points(lambda point: self._come("engine"))
        self._strike: Strike | None = None
        self._struck = threading.Event()
        worker.stopped = lambda: self._come("worker")
        #: Number of connections of each side after everything was used once.
        self.usual: dict[Side, int] = {}

    def run(self, strike: Strike | None = None, nap: float = 0.0, within: float = 60.0) -> End:
        """Run a flow of two independent tasks with a fault.

        :param within: seconds after the fault within which the flow must end.
        :raises TimeoutError: if the flow did not end in time, or the side did not reach the point.
        """
        self._number += 1
        folder = self._folder / f"flow-{self._number}"
        folder.mkdir()
        self._points.install()
        self._points.passed()
        self.worker.passed()
        self._strike = strike
        self._struck.clear()
        if strike is not None:
            (self._points if strike.side == "engine" else self.worker).stop_at(strike.point)
        end = End()
        flow = threading.Thread(target=self._run, args=(folder, nap, end), name="flow")
        flow.start()
        try:
            self._see_through(strike, flow)
        finally:
            over = time.monotonic()
            flow.join(within)
            self._points.stop_at("")
        if flow.is_alive():
            raise TimeoutError(f"the flow did not end within {within:.0f} s after {strike}")
        end.took = time.monotonic() - over
        end.once, end.again = (tasks.runs(folder, name) for name in ("once", "again"))
        end.passed = {"engine": self._points.passed(), "worker": self.worker.passed()}
        return end

    def connections(self) -> dict[Side, int]:
        """Return the number of connections of each side to brokers and ledgers."""
        return {
            side: sum(proxy.connections() for proxy in proxies)
            for side, proxies in self._proxies.items()
        }

    @property
    def spare(self) -> int:
        """Return how many connections a side has in addition to `usual`."""
        return max(count - self.usual[side] for side, count in self.connections().items())

    def _see_through(self, strike: Strike | None, flow: threading.Thread) -> None:
        if strike is None:
            return
        proxies = self._hurt(strike.side)
        # The crash point can follow the end of the flow.
        if not self._struck.wait(60):
            raise TimeoutError(f"{strike.side} did not come to {strike.point}")
        flow.join(strike.fault.lasts)
        strike.fault.end(proxies)

    def _hurt(self, side: Side) -> list[tcp_proxy.Proxy]:
        """Return the proxies that the fault affects. The last one belongs to the ledger, if there
        is
        one.
        """
        proxies = self._proxies[side]
        return proxies[1:] if self.medium.strikes_ledger else proxies[:1]

    def _come(self, side: Side) -> None:
        strike = self._strike
        assert strike is not None and strike.side == side
        strike.fault.begin(self._hurt(side))
        self._struck.set()

    def _run(self, folder: Path, nap: float, end: End) -> None:
        flow = unordered_flow.Flow("flow").add(tasks.Once("once"), tasks.Again("again"))
        store = {"folder": str(folder), "value": 1, "nap": nap}
        try:
            engine = engines.load(flow, store=store, engine="worker-based", executor=self._executor)
            engine.run()
            end.results = {name: engine.storage.fetch(name) for name in ("once", "again")}
        except (exc.WbengineException, OSError) as error:
            end.error = error


class _Worker:
    """A worker process; see `pointed_worker`."""

    def __init__(self, log: Path, arguments: Sequence[str]) -> None:
        self.log = log
        self.stopped: Callable[[], None] = lambda: None
        ours, theirs = socket.socketpair()
        module = "tests.support.pointed_worker"
        words = ["-W", "error", "-m", module, str(theirs.fileno()), *arguments]
        with log.open("wb") as stream, theirs:
            self.process = python.start(
                words, stdout=stream, stderr=stream, cwd=REPOSITORY, pass_fds=[theirs.fileno()]
            )
        self._control = ours
        self._answer = ""
        self._answered = threading.Semaphore(0)
        self._reader = threading.Thread(target=self._read, name="pointed-worker")
        self._reader.start()

    def stop_at(self, point: str) -> None:
        self._ask(f"stop {point}")

    def passed(self) -> list[str]:
        return self._ask("list").split()

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            self._control.close()

    def _ask(self, line: str) -> str:
        self._control.sendall(f"{line}\n".encode())
        assert self._answered.acquire(timeout=60), f"the worker does not answer: {self.text()}"
        return self._answer

    def _read(self) -> None:
        with self._control.makefile("r") as lines, contextlib.suppress(OSError):
            for line in lines:
                if line.startswith("at "):
                    self.stopped()
                    self._control.sendall(b"go\n")
                else:
                    self._answer = line.strip()
                    self._answered.release()


@contextlib.contextmanager
def stage(medium: Medium, folder: Path, servers: Brokers) -> Iterator[Stage]:
    """Yield a stage whose engine has discovered the worker. Check that nothing remains at the end:
    no
    connections, no threads, and no errors in the worker's log.
    """
    before = set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        wanted = [medium.broker, *(["redis"] if medium.ledger == "redis" else [])]
        behind: dict[Side, list[tcp_proxy.Proxy]] = {"engine": [], "worker": []}
        urls: dict[Side, list[str]] = {"engine": [], "worker": []}
        for kind in wanted:
            server: Broker = servers[kind]
            place = stack.enter_context(server.place())
            for side in behind:
                proxy = stack.enter_context(tcp_proxy.threaded(server.port))
                behind[side].append(proxy)
                urls[side].append(place.replace(f":{server.port}/", f":{proxy.port}/"))
        if medium.ledger == "sqlite":
            for side in urls:
                urls[side].append(f"sqlite:///{folder}/ledger.db")
        words = ["--url", urls["worker"][0], "--topic", "t", "--threads", "4"]
        words += [word for ledger in urls["worker"][1:] for word in ("--ledger", ledger)]
        words += ["--tasks", "tests.support.audited_tasks"]
        worker = _Worker(folder / "worker.log", words)
        stack.callback(_end, worker, behind["worker"])
        ledger = {"ledger": urls["engine"][1]} if len(urls["engine"]) > 1 else {}
        executor = executors.WorkerTaskExecutor(
            "engine", "default", topics=["t"], url=urls["engine"][0], worker_expiry=15, **ledger
        )
        stack.callback(_stop, executor, behind["engine"])
        executor.wait_for_workers(1, 60)
        stage = Stage(medium, folder, behind, worker, executor)
        stack.callback(stage._points.remove)
        assert stage.run().error is None
        stage.usual = stage.connections()
        yield stage
    left = set(threading.enumerate()) - before
    assert not left, f"threads are left: {left}"


def _end(worker: _Worker, proxies: list[tcp_proxy.Proxy]) -> None:
    code = worker.end()
    assert code == 0, worker.text()
    assert "Traceback" not in worker.text(), worker.text()
    _expect_none(proxies)


def _stop(executor: executors.WorkerTaskExecutor, proxies: list[tcp_proxy.Proxy]) -> None:
    executor.stop()
    _expect_none(proxies)


def _expect_none(proxies: list[tcp_proxy.Proxy]) -> None:
    deadline = time.monotonic() + 5
    while any(left := [proxy.connections() for proxy in proxies]):
        assert time.monotonic() < deadline, f"connections are left: {left}"
        time.sleep(0.01)
