"""Sources of tasks besides the topics of a worker. They share its pool, lifecycle and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wbengine.engines.worker_based._worker_side import reporting
from wbengine.engines.worker_based._worker_side.slots import Pool

if TYPE_CHECKING:
    from wbengine._concurrency import event_loop


@dataclass(frozen=True)
class WorkerContext:
    """Resources of a worker for its task source."""

    identity: str
    pool: Pool
    #: Event loop for async bodies; None: each process of the pool has one.
    loop: event_loop.EventLoop | None
    slots: int
    #: Called for each task before it starts. If it returns False, the task must not start.
    admit: Callable[[], bool]
    #: Stops the worker.
    stop: Callable[[], None]
    #: Makes the exit code of the process report a failure.
    fail: Callable[[], None]
    reports: reporting.Reports


class TaskSource:
    """A source of tasks for a worker; any thread may call it. This class has no tasks.

    `attach` is called once, before all others. Later outages of the broker must not end the source.
    """

    #: Time of the last task, on the monotonic clock.
    last_task_at: float = -math.inf

    def attach(self, context: WorkerContext) -> None: ...

    def start(self) -> None:
        """Connect and start to receive tasks.

        :raises TransportFailure: if the broker cannot be reached.
        """

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until the source receives tasks; return False on timeout."""
        return True

    def suspend(self) -> None:
        """Receive no new tasks until `resume`, and requeue unstarted ones. Idempotent."""

    def resume(self) -> None:
        """Receive tasks again."""

    def drain(self) -> None:
        """Receive no more tasks, and requeue unstarted ones. Idempotent."""

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no work remains; return False on timeout."""
        return True

    def give_up(self) -> None:
        """Cancel running tasks without reporting their ends. Idempotent."""

    def close(self, timeout: float = 5.0) -> None:
        """Send the remaining reports and disconnect. Idempotent."""

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        return ()

    @property
    def busy(self) -> bool:
        """Whether any task runs, waits or is not settled."""
        return False

    @property
    def running(self) -> int:
        return 0

    @property
    def current(self) -> Sequence[tuple[str, str, float]]:
        """Ids, names and start times (Unix time) of running tasks. Does not wait for locks."""
        return ()
