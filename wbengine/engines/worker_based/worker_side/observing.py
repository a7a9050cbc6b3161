"""Whoever watches a worker: told what becomes of each request that it takes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from wbengine.engines.worker_based import server

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.ledger import base as ledgers
    from wbengine.engines.worker_based.messages import envelope as env
    from wbengine.engines.worker_based.worker_side.deeds import Effect
    from wbengine.engines.worker_based.worker_side.jobs import Job, Key

__all__ = ["Observed", "Observer", "Together", "server_for"]


class Observer(Protocol):
    """What is told of a request, in this order.  Under the lock of a `Server`: it must neither wait
    nor raise, nor run what is not its own.

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
        """It was not run, and goes back to where it came from, or is somebody else's."""

    def given_up(self, job: Job) -> None:
        """The worker ended before its task did."""


class Observed(server.Server):
    """A `Server` that is watched by an `observer`."""

    def __init__(self, observer: Observer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._observer = observer
        # Of these it was told that they came, and nothing last.
        self._seen: set[Key] = set()

    def _start(self, job: Job) -> list[Effect]:
        self._receive(job)
        return super()._start(job)

    def _begin(self, job: Job) -> list[Effect]:
        effects = super()._begin(job)
        if job.key in self._roll.begun:
            self._observer.started(job)
        return effects

    def on_checked(self, job: Job, row: ledgers.Row | None) -> list[Effect]:
        effects = super().on_checked(job, row)
        if job.key not in self._roll.jobs and self._last(job):
            self._observer.returned(job)
        return effects

    def _hand_back(self, job: Job) -> list[Effect]:
        effects = super()._hand_back(job)
        if self._last(job):
            self._observer.returned(job)
        return effects

    def on_released(self, job: Job, released: bool) -> list[Effect]:
        if not released:
            self._receive(job)
        return super().on_released(job, released)

    def on_finished(self, job: Job, outcome: invocation.Outcome) -> list[Effect]:
        effects = super().on_finished(job, outcome)
        if job.outcome is not None:
            self._observer.ended(job, job.outcome)
        return effects

    def _end(self, job: Job, answer: env.Envelope, how: str | None = None) -> list[Effect]:
        if self._last(job) and how is not None:
            self._observer.refused(job)
        return super()._end(job, answer, how)

    def die(self, now: float, period: float | None = None) -> list[Effect]:
        jobs = list(self._roll.jobs.values())
        effects = super().die(now, period)
        for job in jobs:
            if self._last(job):
                self._observer.given_up(job)
        return effects

    def _receive(self, job: Job) -> None:
        if job.key not in self._seen:
            self._seen.add(job.key)
            self._observer.received(job)

    def _last(self, job: Job) -> bool:
        """Whether it was told that it came, and is not to be told so."""
        if job.key not in self._seen:
            return False
        self._seen.remove(job.key)
        return True


class Together:
    """Several observers, told one after the other."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = tuple(observers)

    def received(self, job: Job) -> None:
        for each in self._all:
            each.received(job)

    def started(self, job: Job) -> None:
        for each in self._all:
            each.started(job)

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        for each in self._all:
            each.ended(job, outcome)

    def refused(self, job: Job) -> None:
        for each in self._all:
            each.refused(job)

    def returned(self, job: Job) -> None:
        for each in self._all:
            each.returned(job)

    def given_up(self, job: Job) -> None:
        for each in self._all:
            each.given_up(job)


def server_for(observer: Observer | None) -> Callable[..., server.Server]:
    """What makes a `Server`: one that is watched, where somebody does."""
    return server.Server if observer is None else functools.partial(Observed, observer)
