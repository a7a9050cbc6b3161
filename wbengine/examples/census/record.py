"""What a finished run leaves to tell: which worker ran which task when, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wbengine.examples.census.flow import Step


@dataclass(frozen=True, slots=True)
class Ran:
    """One task's run; `started` and `ended` are seconds since the first task started.

    `worker` counts from 0, in the order the workers first started something.
    """

    step: Step
    worker: int
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)


@dataclass(frozen=True, slots=True)
class Record:
    """One run; `workers` are the identities of those who ran something, `seconds` the flow's."""

    engine: str
    workers: tuple[str, ...]
    seconds: float
    ran: tuple[Ran, ...]
    census: dict[str, Any]

    def busy(self, worker: int) -> float:
        """The seconds that a worker spent in tasks."""
        return sum(ran.seconds for ran in self.ran if ran.worker == worker)

    def name(self, worker: int) -> str:
        """What people call a worker."""
        return f"worker {worker + 1}"


def compile_record(
    engine: str,
    seconds: float,
    attempts: Sequence[tuple[Step, str, float, float]],
    census: dict[str, Any],
) -> Record:
    """Make a record of `(step, worker's identity, started, ended)`, in unix seconds."""
    in_order = sorted(attempts, key=lambda attempt: attempt[2])
    workers = tuple(dict.fromkeys(identity for _, identity, _, _ in in_order))
    origin = in_order[0][2] if in_order else 0.0
    ran = tuple(
        Ran(step, workers.index(identity), started - origin, ended - origin)
        for step, identity, started, ended in in_order
    )
    return Record(engine, workers, seconds, ran, census)
