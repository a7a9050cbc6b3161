"""Where a `Service` stands: its jobs, what it counts, and what people are told of both."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from wbengine.interop.celery.protocol import results
from wbengine.interop.celery.worker import doubting, mapping, remembering, telling
from wbengine.interop.celery.worker.jobs import Job, Jobs, Key, Past

__all__ = ["Standing"]

#: So many jobs are told of at once.
_MOST: Final = 1000

#: How many jobs may be in doubt at once: as few, and as many.
_NARROWEST: Final = 32
_WIDEST: Final = 1000

_PLAIN: Final = (str, int, float, bool, type(None))


class Standing:
    """What is known of one worker's task messages; `Service` changes it."""

    def __init__(
        self, tasks: mapping.Tasks, slots: int, worker: str, ahead: int, max_held: int
    ) -> None:
        self.tasks = tasks
        self.slots = slots
        self.worker = worker
        self.jobs = Jobs()
        self.revoked = remembering.Revoked()
        #: How many tasks began, and ended how; and by name, how many were taken.
        self.began = 0
        self.successes = 0
        self.failures = 0
        self.totals: dict[str, int] = {}
        #: What became of messages that did not lead to a run.
        self.counts: dict[str, int] = {}
        self._ended = remembering.Ended(remembering.ENDED)
        self._spared = remembering.Spared(remembering.ENDED)
        self._ahead = ahead
        #: How many jobs may be in doubt at once, and how many had begun at the last answer.
        self._window = _NARROWEST
        self._began_before = 0
        self._max_held = max_held

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    @property
    def running(self) -> int:
        """Number of tasks that have a slot, and have not ended."""
        return len(self.jobs.begun) + len(self.jobs.noting)

    @property
    def waiting(self) -> int:
        """Number of messages that wait for a slot."""
        return len(self.jobs.waiting)

    @property
    def held(self) -> int:
        """Number of messages whose time has not come."""
        return len(self.jobs.held)

    @property
    def busy(self) -> bool:
        """Whether anything that was taken is not settled yet."""
        return bool(len(self.jobs))

    @property
    def prefetch(self) -> int:
        """How many messages may be unsettled at once, as it is now."""
        doubtful = min(len(self.jobs.doubtful), self._window)
        return self.slots + self._ahead + doubtful + min(len(self.jobs.held), self._max_held)

    def _widen(self) -> None:
        """More may be in doubt at once where what was in doubt begins soon."""
        began, self._began_before = self.began - self._began_before, self.began
        self._window = min(_WIDEST, max(_NARROWEST, 2 * began))

    # As `celery inspect` shows it: the first thousand of each.

    def active(self) -> list[dict[str, Any]]:
        """What runs."""
        return self._told(self.jobs.begun.values())

    def reserved(self) -> list[dict[str, Any]]:
        """What waits for a slot."""
        return self._told([*self.jobs.noting.values(), *self.jobs.waiting.values()])

    def scheduled(self) -> list[dict[str, Any]]:
        """What waits for its time."""
        return [
            {"eta": results.moment(job.eta or 0.0), "priority": 6, "request": told}
            for job, told in zip(
                self.jobs.held.values(), self._told(self.jobs.held.values()), strict=False
            )
        ]

    def query(self, ids: Iterable[Any]) -> dict[str, list[Any]]:
        """Of these, what is here, or was: `{id: [state, description]}`.

        What nobody has been told the end of is active.  What is in doubt is not known, unless a
        note says that it began: then it is "doubted".  "spared" is told once of each note that may
        have been made for nothing, and then forgotten.
        """
        wanted = {id for id in ids if isinstance(id, str)}
        found: dict[str, list[Any]] = {}
        for id in wanted:
            if attempt := self._ended.attempt(id):
                found[id] = ["ended", {"id": id, "attempt": attempt}]
        for id in wanted.difference(found):
            if notes := self._spared.take_all(id):
                found[id] = [doubting.SPARED, {"id": id, "notes": notes}]
        states = (
            (doubting.DOUBTED, self._noted()),
            ("active", self.jobs.leaving),
            ("active", self.jobs.begun),
            ("reserved", self.jobs.noting),
            ("reserved", self.jobs.waiting),
            ("scheduled", self.jobs.held),
        )
        for state, jobs in states:
            for job in jobs.values():
                if job.id in wanted:
                    found[job.id] = [state, self._describe(job)]
        return found

    def _noted(self) -> dict[Key, Job]:
        """What is in doubt, and has begun."""
        return {k: job for k, job in self.jobs.doubtful.items() if job.past is Past.BEGUN}

    def _told(self, jobs: Iterable[Job]) -> list[dict[str, Any]]:
        return [self._describe(job) for job, _ in zip(jobs, range(_MOST), strict=False)]

    def _describe(self, job: Job) -> dict[str, Any]:
        message = job.message
        args, kwargs = list(message.args), dict(message.kwargs)
        plain = all(isinstance(value, _PLAIN) for value in (*args, *kwargs.values(), *kwargs))
        return {
            "id": job.id,
            "name": job.name,
            "args": args if plain else message.argsrepr or telling.words(args),
            "kwargs": kwargs if plain else message.kwargsrepr or telling.words(kwargs),
            "type": job.task,
            "hostname": self.worker,
            "time_start": job.started,
            "acknowledged": False,
            "delivery_info": {
                "exchange": "",
                "routing_key": job.queue,
                "priority": message.priority,
                "redelivered": job.past is not Past.NONE,
            },
            "worker_pid": None if job.started is None else os.getpid(),
        }
