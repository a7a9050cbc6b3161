"""What a worker shows of itself, to its own process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wbengine import pools
from wbengine.engines.worker_based.messages import life as lives
from wbengine.engines.worker_based.worker_side import describing

if TYPE_CHECKING:
    import threading

    from wbengine.engines.worker_based import proxy, server
    from wbengine.engines.worker_based.discovery import snapshots
    from wbengine.engines.worker_based.worker_side import performing, reporting, task_sources
    from wbengine.engines.worker_based.worker_side.slots import Pool

__all__ = ["SILENCE", "Portrait"]

#: Seconds after which a broker that said nothing is taken for gone: by then its consumer, which
#: speaks to itself when it hears nothing, connects anew.
SILENCE = 30.0


class Portrait:
    """A worker that can be looked at; from any thread."""

    identity: str
    _exchange: str
    _topics: Sequence[str]
    _offered: Mapping[str, Any]
    _queues: Mapping[str, str]
    _slots: int
    _kind: str
    _pool: Pool
    _sources: task_sources.TaskSources
    _proxy: proxy.Proxy
    _hands: performing.Performer
    _server: server.Server
    _draining: threading.Event
    _reports: reporting.Reports

    @property
    def banner(self) -> str:
        """Who this is, where it listens, and what it does, for people."""
        return describing.banner(
            self.identity,
            self._proxy.connection_details["uri"],
            self._exchange,
            self._topics,
            list(self._offered),
            f"{self._slots} {self._kind}",
            self._sources.description,
        )

    @property
    def queues(self) -> dict[str, str]:
        """The queue of each topic."""
        return dict(self._queues)

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks ended (by state) and how many messages were not run (by reason)."""
        with self._hands.lock:
            return dict(self._server.counts)

    @property
    def folded(self) -> int:
        """How many tasks ended before anybody was told that they run: one message less each."""
        return self._hands.folded

    @property
    def life(self) -> lives.Life:
        """What it tells of itself."""
        with self._hands.lock:
            return self._server.life

    @property
    def is_solo(self) -> bool:
        """Whether tasks run in the thread that called `run`."""
        return isinstance(self._pool, pools.SoloPool)

    @property
    def system(self) -> str:
        """What carries its messages, such as `rabbitmq`."""
        return self._proxy.target.system

    @property
    def heard(self) -> float:
        """When it last heard its broker, on the monotonic clock; never, while it is not connected.

        One that can be reached says something every 10 seconds or so, if only what the worker sends
        to itself.  Brokers in this process, and folders, are always heard.
        """
        return self._proxy.heard

    @property
    def trouble(self) -> str | None:
        """Why it takes no requests now; None: it does."""
        if self._draining.is_set():
            return "it ends"
        if self._server.suspended:
            return "it is suspended"
        silence = time.monotonic() - self.heard
        if math.isinf(silence):
            return "it is not connected to its broker"
        if silence > SILENCE:
            return f"its broker has been silent for {silence:.0f} s"
        return (
            None if self._sources.wait_ready(0) else "it is not connected to the broker of Celery"
        )

    @property
    def snapshot(self) -> snapshots.WorkerSnapshot:
        """What engines know of it, and when it heard its broker last."""
        from wbengine.engines.worker_based.discovery import snapshots

        now = time.monotonic()
        with self._hands.lock:
            life, running = self._server.life, self._server.running + self._sources.running
        return snapshots.WorkerSnapshot(
            self.identity,
            tuple(self._topics),
            tuple(self._queues.values()),
            tuple(self._offered),
            self._slots,
            min(self._slots, running),
            max(0.0, time.time() - (now - self.heard)),
            life,
        )

    def responds(self, within: float) -> bool:
        """Whether it is able to do anything: False where somebody keeps its lock for `within` s."""
        if not self._hands.lock.acquire(timeout=within):
            return False
        self._hands.lock.release()
        return True

    def observe_tasks(self, observer: reporting.TaskObserver) -> None:
        """Tell `observer` of the tasks that other sources bring, from now on."""
        self._reports.observers = (*self._reports.observers, observer)

    def preload(self, modules: Iterable[str]) -> None:
        """Have children, if tasks run there, import these too before their first one; to be called
        before `run`."""
        if isinstance(self._pool, pools.ProcessPool):
            self._pool.preload(modules)

    def tell_turns(self, turned: Callable[[float], object]) -> None:
        """Have `turned(heard)` called in each turn of the loop that takes what comes, at least once
        a second while it is connected, in its thread.
        """
        self._proxy.turned = turned
