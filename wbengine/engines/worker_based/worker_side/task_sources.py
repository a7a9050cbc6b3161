"""What brings a worker tasks in another way than its topics.

It shares the worker's pool, and its life: what limits a worker, suspends it or ends it counts it
in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wbengine.engines.worker_based.worker_side import reporting
from wbengine.engines.worker_based.worker_side.slots import Pool

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop


@dataclass(frozen=True)
class WorkerContext:
    """What a worker lends its task source."""

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


class TaskSource:
    """What a worker asks of a source of tasks, from any thread; this one brings none.

    `attach` is called first, and once.  `start` connects, and raises what keeps it from that:
    afterwards a broker that is away is no reason to end.
    """

    #: When its last task came, on the monotonic clock.
    taken: float = -math.inf

    def attach(self, context: WorkerContext) -> None: ...

    def start(self) -> None:
        """
        :raises TransportFailure: its broker cannot be reached.
        """

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until it takes tasks; False if time ran out."""
        return True

    def suspend(self) -> None:
        """Take nothing new until `resume`; what did not begin goes back.  Idempotent."""

    def resume(self) -> None:
        """Take what comes again."""

    def drain(self) -> None:
        """Take nothing new any more; what did not begin goes back.  Idempotent."""

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way any more; False if time ran out."""
        return True

    def give_up(self) -> None:
        """Cancel what runs; nothing is told any more of what becomes of it.  Idempotent."""

    def close(self, timeout: float = 5.0) -> None:
        """Tell what is left to be told, and disconnect.  Idempotent."""

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        """What the banner says of it: short names, and what they are."""
        return ()

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits, or is not settled yet."""
        return False

    @property
    def running(self) -> int:
        """How many tasks run."""
        return 0

    @property
    def current(self) -> Sequence[tuple[str, str, float]]:
        """What runs: ids, names, and when each was begun (unix seconds).  Waits for no lock."""
        return ()
