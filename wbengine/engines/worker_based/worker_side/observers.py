"""Observers of a worker: told what becomes of each request that it takes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.worker_side.jobs import Job, Key


class Observer(Protocol):
    """What is told of a request, in this order.  Under the lock of a `Server`: it must neither wait
    nor raise, nor run code of tasks.

    `received` comes first, and one of `ended`, `refused`, `returned` and `given_up` last.
    """

    def received(self, job: Job) -> None:
        """It is to be run here."""

    def started(self, job: Job) -> None:
        """It has a slot."""

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        """Its task ended."""

    def refused(self, job: Job) -> None:
        """It was not run, and never will be: `job.refusal` says why."""

    def returned(self, job: Job) -> None:
        """It was not run, and goes back to where it came from, or is another worker's."""

    def given_up(self, job: Job) -> None:
        """The worker ended before its task did."""


class ObservedJobs:
    """Tells observers of the jobs of a `Server`: of each that it came, and what came last."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        # Of these they were told that they came, and nothing last.
        self._told: set[Key] = set()

    def received(self, job: Job) -> None:
        if job.key not in self._told:
            self._told.add(job.key)
            for each in self._observers:
                each.received(job)

    def started(self, job: Job) -> None:
        for each in self._observers:
            each.started(job)

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._told.discard(job.key)
        for each in self._observers:
            each.ended(job, outcome)

    def refused(self, job: Job) -> None:
        for each in self._last_told(job):
            each.refused(job)

    def returned(self, job: Job) -> None:
        for each in self._last_told(job):
            each.returned(job)

    def given_up(self, job: Job) -> None:
        for each in self._last_told(job):
            each.given_up(job)

    def _last_told(self, job: Job) -> Iterable[Observer]:
        """Those who know of a job; nothing more is told of it."""
        if job.key not in self._told:
            return ()
        self._told.remove(job.key)
        return self._observers
