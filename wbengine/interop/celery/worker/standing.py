"""Where a `Service` stands: its jobs, what it counts, and what people are told of both."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from wbengine.interop.celery.protocol import results
from wbengine.interop.celery.worker import mapping, remembering, telling
from wbengine.interop.celery.worker.jobs import Job, Jobs

__all__ = ["Standing"]

#: So many jobs are told of at once.
_MOST: Final = 1000

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
        self._ahead = ahead
        self._max_held = max_held

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    @property
    def running(self) -> int:
        """Number of tasks that began and have not ended."""
        return len(self.jobs.begun)

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
        held = len(self.jobs.held) + len(self.jobs.doubtful)
        return self.slots + self._ahead + min(held, self._max_held)

    # As `celery inspect` shows it: the first thousand of each.

    def active(self) -> list[dict[str, Any]]:
        """What runs."""
        return self._told(self.jobs.begun.values())

    def reserved(self) -> list[dict[str, Any]]:
        """What waits for a slot."""
        return self._told(self.jobs.waiting.values())

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

        What nobody has been told the end of is active; what is in doubt is not known.
        """
        wanted = {id for id in ids if isinstance(id, str)}
        found: dict[str, list[Any]] = {}
        for id in wanted:
            if attempt := self._ended.attempt(id):
                found[id] = ["ended", {"id": id, "attempt": attempt}]
        states = (
            ("active", self.jobs.leaving),
            ("active", self.jobs.begun),
            ("reserved", self.jobs.waiting),
            ("scheduled", self.jobs.held),
        )
        for state, jobs in states:
            for job in jobs.values():
                if job.id in wanted:
                    found[job.id] = [state, self._describe(job)]
        return found

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
                "redelivered": job.redelivered,
            },
            "worker_pid": None if job.started is None else os.getpid(),
        }
