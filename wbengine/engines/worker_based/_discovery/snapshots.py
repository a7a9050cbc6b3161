"""Snapshots of the workers and requests of an executor, for monitoring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine._introspection import object_names
from wbengine.engines.worker_based._discovery import roster
from wbengine.engines.worker_based._messages import worker_life as lives

#: State of a request.
State = Literal["deferred", "queued", "started", "finished", "failed"]
#: The request waits for its `eta`, or no known worker can run it.
DEFERRED: Final = "deferred"
#: The request is published, or waits to be published.
QUEUED: Final = "queued"
#: A worker runs the request.
STARTED: Final = "started"
FINISHED: Final = "finished"
FAILED: Final = "failed"

STATES: Final[tuple[State, ...]] = (DEFERRED, QUEUED, STARTED, FINISHED, FAILED)


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker process, according to its last report.

    `heard` is the Unix time of that report on this process's clock; the times in `life` are on the
    worker's clock. `queues` have the same order as `topics`. `software` is the worker's version of
    wbengine, `ledger` the digest of its ledger, `code` the version of the user's code.
    Plain peers of TaskFlow have neither identity nor life, and share one snapshot for each topic.
    """

    identity: str | None
    topics: tuple[str, ...]
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    running: int
    heard: float
    life: lives.Life | None = None
    software: str | None = None
    ledger: str | None = None
    code: str | None = None

    @property
    def state(self) -> str:
        """One of `life.STATES`."""
        if self.life is not None:
            return self.life.state
        return lives.BUSY if self.running else lives.IDLE


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """One request of an executor.

    Times are Unix time: `submitted` on this process's clock, `started` and `ended` on the
    worker's. `error` is the failure in one line.
    """

    id: str
    task: str
    task_cls: str
    action: str
    attempt: int
    epoch: int
    state: State
    atom: str = ""
    flow: str = ""
    queue: str | None = None
    worker: str | None = None
    priority: int = 0
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    error: str | None = None

    @property
    def runtime(self) -> float | None:
        """Duration in seconds; None if unknown."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.started)


def check_state(state: Any) -> None:
    """Check the state of requests; None represents all states.

    :raises ValueError: if it is neither in `STATES` nor None.
    """
    if state is not None and state not in STATES:
        hint = object_names.hint(str(state), STATES)
        raise ValueError(f"state must be one of {', '.join(STATES)}, got {state!r}{hint}")


def of_workers(
    workers: Iterable[roster.TopicWorker], now: float, wall: float
) -> list[WorkerSnapshot]:
    """Return one snapshot for each process, in the order of their first announcements.

    :param now: the present time on the clock of `last_seen`.
    :param wall: the present Unix time.
    """
    processes: dict[Any, list[roster.TopicWorker]] = {}
    for worker in workers:
        known = worker.identity is not roster.NO_IDENTITY
        processes.setdefault(worker.identity if known else ("", worker.topic), []).append(worker)
    return [_of_process(topics, now, wall) for topics in processes.values()]


def _of_process(workers: Sequence[roster.TopicWorker], now: float, wall: float) -> WorkerSnapshot:
    last = max(workers, key=lambda worker: worker.last_seen)
    return WorkerSnapshot(
        None if last.identity is roster.NO_IDENTITY else str(last.identity),
        tuple(worker.topic for worker in workers),
        tuple(worker.queue for worker in workers),
        tuple(dict.fromkeys(task for worker in workers for task in worker.tasks)),
        last.slots,
        last.running,
        wall - (now - last.last_seen),
        last.life,
        last.software,
        last.ledger,
        last.code,
    )
