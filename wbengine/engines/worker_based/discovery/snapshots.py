"""What an executor knows of its workers and its requests, at one moment, for whoever looks on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine import _names
from wbengine.engines.worker_based.discovery import roster
from wbengine.engines.worker_based.messages import life as lives

__all__ = [
    "DEFERRED",
    "FAILED",
    "FINISHED",
    "QUEUED",
    "STARTED",
    "STATES",
    "RequestSnapshot",
    "State",
    "WorkerSnapshot",
    "check_state",
    "of_workers",
]

#: Where a request stands.
State = Literal["deferred", "queued", "started", "finished", "failed"]
#: Its time has not come (`eta`), or nobody who could run it is known.
DEFERRED: Final = "deferred"
#: It is on its way to a worker, or waits for its turn to be.
QUEUED: Final = "queued"
#: A worker runs it.
STARTED: Final = "started"
FINISHED: Final = "finished"
FAILED: Final = "failed"

STATES: Final[tuple[State, ...]] = (DEFERRED, QUEUED, STARTED, FINISHED, FAILED)


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker process, as it last described itself.

    `heard` is when that was, in unix seconds on this process's clock; the moments in its life are
    on the worker's.  `queues` are those of its `topics`, in the same order; `software` is the
    version of wbengine that it runs, `ledger` the digest of its ledger.  Peers that speak plain
    TaskFlow have no identity and no life, and all of a topic look like one.
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

    @property
    def state(self) -> str:
        """One of `life.STATES`."""
        if self.life is not None:
            return self.life.state
        return lives.BUSY if self.running else lives.IDLE


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """One request of an executor.

    Moments are unix seconds: `submitted` on this process's clock, `started` and `ended` on that of
    the worker.  `error` is how it failed, in one line.
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
        """Seconds that it took; None while that is not known."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.started)


def check_state(state: Any) -> State | None:
    """`state`, if requests can be asked for by it; None stands for all.

    :raises ValueError: it is none of `STATES`.
    """
    if state is not None and state not in STATES:
        hint = _names.hint(str(state), STATES)
        raise ValueError(f"{state!r} is no state of a request{hint}: {', '.join(STATES)}")
    found: State | None = state
    return found


def of_workers(
    workers: Iterable[roster.TopicWorker], now: float, wall: float
) -> list[WorkerSnapshot]:
    """One snapshot for each process, in the order in which they were first heard of.

    `now` is the clock that their `last_seen` is on, `wall` the same moment in unix seconds.
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
    )
