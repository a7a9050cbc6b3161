"""Observers of the requests of a worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wbengine._calls import invocation
    from wbengine.engines.worker_based._worker_side.jobs import Job, Key


class Observer(Protocol):
    """Receives the events of a request: `received`, possibly `started`, and one of the other four.

    Methods are called under the lock of a `Server`. They must not block, raise or run user code.
    """

    def received(self, job: Job) -> None:
        """Handle a request that this worker has accepted."""

    def started(self, job: Job) -> None:
        """Handle a request that got a slot."""

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        """Handle the end of a task."""

    def refused(self, job: Job) -> None:
        """Handle a request that never runs, because of `job.refusal`."""

    def returned(self, job: Job) -> None:
        """Handle a request that did not run, and is requeued or owned by another worker."""

    def given_up(self, job: Job) -> None:
        """Handle a request whose worker stopped before the task ended."""


class ObservedJobs:
    """Passes the events of a `Server` to observers: for each job one `received` and one end."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        # Jobs whose end was not reported yet.
        self._open_keys: set[Key] = set()

    def received(self, job: Job) -> None:
        if job.key not in self._open_keys:
            self._open_keys.add(job.key)
            for each in self._observers:
                each.received(job)

    def started(self, job: Job) -> None:
        for each in self._observers:
            each.started(job)

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._open_keys.discard(job.key)
        for each in self._observers:
            each.ended(job, outcome)

    def refused(self, job: Job) -> None:
        for each in self._finish(job):
            each.refused(job)

    def returned(self, job: Job) -> None:
        for each in self._finish(job):
            each.returned(job)

    def given_up(self, job: Job) -> None:
        for each in self._finish(job):
            each.given_up(job)

    def _finish(self, job: Job) -> Iterable[Observer]:
        """Close a job and return the observers of its end; none if it is not open."""
        if job.key not in self._open_keys:
            return ()
        self._open_keys.remove(job.key)
        return self._observers
