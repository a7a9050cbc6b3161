"""How jobs begin: at their time, when a slot is free, and after their broker has noted it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from wbengine.interop.celery.worker import doubting, holding, leaving, telling
from wbengine.interop.celery.worker.deeds import Effect, Inquire, Mark, Run
from wbengine.interop.celery.worker.jobs import Job, Past

__all__ = ["Beginning", "is_early"]

#: Seconds that a message stays here which is too early, where too many of them are.
PATIENCE: Final = 5.0


class Beginning(leaving.Leaving):
    """Sees that each job begins once.

    One that may not run twice begins in two steps: its broker notes that it does (`Mark`), and
    then it runs.  It has its slot from the first of them.
    """

    _admit: Callable[[], bool] | None
    _max_hold: float | None
    _nonce: str
    _timetable: holding.Timetable
    _doubts: doubting.Doubts
    _full = False
    _suspended = False
    _draining = False
    _abandoned = False

    @property
    def _takes(self) -> bool:
        return not (self._suspended or self._draining)

    def _is_idempotent(self, job: Job) -> bool:
        return job.endpoint is not None and bool(job.endpoint.task_cls.idempotent)

    # In time.

    def _hold(self, job: Job, now: float) -> None:
        assert job.eta is not None
        job.due = job.eta
        if self._max_hold is not None:
            job.due = min(job.due, now + self._max_hold)
        if len(self.jobs.held) >= self._max_held:
            self._count("crowded")
            job.due = min(job.due, now + PATIENCE)
        self._timetable.add(job)

    def next_due(self) -> float | None:
        """When `on_due` is to be called next; None: not before something happens."""
        moments = (self._timetable.next(), self._doubts.next())
        return min((moment for moment in moments if moment is not None), default=None)

    def on_due(self, now: float) -> list[Effect]:
        """`next_due` has come: what is held may begin, or goes back and comes again; others are
        asked for what is in doubt."""
        effects: list[Effect] = []
        doubted = self._doubts.next()
        if doubted is not None and doubted <= now:
            for job in self._doubts.overdue(now):
                effects += self._requeue(job)
            if self.jobs.doubtful:
                effects.append(Inquire(self._doubts.ask(now)))
        for job in self._timetable.due(now):
            if is_early(job, now):
                effects += self._give_back(job)
            else:
                effects += self._begin(job, now)
        return effects

    # In a slot.

    def _begin(self, job: Job, now: float) -> list[Effect]:
        if _is_late(job, now):
            return self._revoke(job, "expired", now)
        if self.running >= self.slots or not self._is_admitted():
            self.jobs.waiting[job.key] = job
            return []
        self.began += 1
        if job.past is Past.BEGUN or self._is_idempotent(job):
            return self._run(job, now)
        job.note = f"{self._nonce}.{self.began}"
        self.jobs.noting[job.key] = job
        return [Mark(job)]

    def _run(self, job: Job, now: float) -> list[Effect]:
        self.jobs.begun[job.key] = job
        job.started = now
        if not self.telling:
            return [Run(job)]
        return [telling.started(job), Run(job)]

    def _is_admitted(self) -> bool:
        if not self._full and self._admit is not None:
            self._full = not self._admit()
        return not self._full

    def _refill(self, now: float) -> list[Effect]:
        """Slots are free: they are for who waited longest."""
        effects: list[Effect] = []
        waiting = self.jobs.waiting
        while waiting and not self._full and self.running < self.slots:
            _, job = waiting.popitem(last=False)
            effects += self._begin(job, now)
            if self._full:
                waiting.move_to_end(job.key, last=False)  # as before
        return effects

    # Noted.

    def on_marked(self, jobs: Iterable[Job], now: float) -> list[Effect]:
        """The broker has noted that these begin."""
        effects: list[Effect] = []
        for job in jobs:
            if self.jobs.noting.get(job.key) is not job:
                continue  # the connection was lost meanwhile
            del self.jobs.noting[job.key]
            if self._abandoned:
                effects += self._give_back(job)
            elif self.revoked.covers(job.id, job.message.stamps):
                effects += self._revoke(job, "revoked", now)
            elif _is_late(job, now):
                effects += self._revoke(job, "expired", now)
            else:
                effects += self._run(job, now)
        return effects + self._refill(now)

    def on_refused(self, jobs: Iterable[Job], now: float) -> list[Effect]:
        """Somebody else began these, while this worker did not say that it has them."""
        for job in jobs:
            if self.jobs.noting.get(job.key) is job:
                del self.jobs.noting[job.key]
                self._count("elsewhere")
        return self._refill(now)


def is_early(job: Job, now: float) -> bool:
    """Whether its time has not come."""
    return job.eta is not None and job.eta > now


def _is_late(job: Job, now: float) -> bool:
    return job.expires is not None and now > job.expires
