"""Task sources of a worker: what brings it tasks in another way than its topics.

They share its pool, and its life: what limits a worker, suspends it or ends it counts them in.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from wbengine.engines.worker_based.worker_side import reporting
from wbengine.engines.worker_based.worker_side.slots import Pool

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerContext:
    """What a worker lends its task sources."""

    identity: str
    pool: Pool
    #: Where async bodies run; None: in loops of the pool's own processes.
    loop: event_loop.EventLoop | None
    slots: int
    #: Called once for each task that is about to begin; False: no more may.
    admit: Callable[[], bool]
    #: Ends the worker, as its `stop` does.
    stop: Callable[[], None]
    #: Has the process of the worker say, by its exit code, that it did not end as asked.
    fail: Callable[[], None]
    #: Tells people how tasks end.
    reports: reporting.Reports


class TaskSource(Protocol):
    """What a worker asks of a source of tasks; from any thread.

    `attach` is called first, and once.  `start` connects, and raises what keeps it from that:
    afterwards a broker that is away is no reason to end.
    """

    def attach(self, context: WorkerContext) -> None: ...

    def start(self) -> None:
        """
        :raises TransportFailure: its broker cannot be reached.
        """

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until it takes tasks; False if time ran out."""

    def suspend(self) -> None:
        """Take nothing new until `resume`; what did not begin goes back.  Idempotent."""

    def resume(self) -> None:
        """Take what comes again."""

    def drain(self) -> None:
        """Take nothing new any more; what did not begin goes back.  Idempotent."""

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way any more; False if time ran out."""

    def give_up(self) -> None:
        """Cancel what runs; nothing is told any more of what becomes of it.  Idempotent."""

    def close(self, timeout: float = 5.0) -> None:
        """Tell what is left to be told, and disconnect.  Idempotent."""

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        """What the banner says of it: short names, and what they are."""

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits, or is not settled yet."""

    @property
    def running(self) -> int:
        """How many tasks run."""

    @property
    def current(self) -> Sequence[tuple[str, str, float]]:
        """What runs: ids, names, and when each was begun (unix seconds).  Waits for no lock."""

    @property
    def taken(self) -> float:
        """When its last task came, on the monotonic clock."""


#: Seconds that a source has to tell what is left when the worker ends.
_LAST: Final = 5.0


class TaskSources:
    """All task sources of one worker, as one."""

    def __init__(self, sources: Iterable[TaskSource]) -> None:
        self._all = tuple(sources)

    def attach(self, context: WorkerContext) -> None:
        for source in self._all:
            source.attach(context)

    def __len__(self) -> int:
        return len(self._all)

    def start(self) -> None:
        """
        :raises TransportFailure: the broker of one cannot be reached.
        """
        for source in self._all:
            source.start()

    def wait_ready(self, timeout: float | None) -> bool:
        until = math.inf if timeout is None else time.monotonic() + timeout
        return all(source.wait_ready(_left(until)) for source in self._all)

    def suspend(self) -> None:
        for source in self._all:
            source.suspend()

    def resume(self) -> None:
        for source in self._all:
            source.resume()

    def drain(self) -> None:
        for source in self._all:
            source.drain()

    def wait_idle(self, until: float = math.inf) -> bool:
        """`until` a moment on the monotonic clock."""
        return all(source.wait_idle(_left(until)) for source in self._all)

    def give_up(self) -> None:
        for source in self._all:
            source.give_up()

    def close(self, timeout: float = _LAST) -> None:
        """Whatever becomes of one, the others are closed."""
        for source in self._all:
            try:
                source.close(timeout)
            except Exception:
                LOG.exception("%s cannot be closed", source)

    @property
    def description(self) -> list[tuple[str, str]]:
        return [line for source in self._all for line in source.description]

    @property
    def busy(self) -> bool:
        return any(source.busy for source in self._all)

    @property
    def running(self) -> int:
        return sum(source.running for source in self._all)

    @property
    def current(self) -> list[tuple[str, str, float]]:
        return [each for source in self._all for each in source.current]

    @property
    def taken(self) -> float:
        return max((source.taken for source in self._all), default=-math.inf)


def _left(until: float) -> float | None:
    return None if until == math.inf else max(0.0, until - time.monotonic())
