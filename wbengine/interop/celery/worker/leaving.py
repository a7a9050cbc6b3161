"""How jobs leave a `Service`: with an end that is told, given back, or as they came."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from wbengine.interop.celery.protocol import results
from wbengine.interop.celery.worker import ending, standing, telling
from wbengine.interop.celery.worker.deeds import Acknowledge, Effect, End, GiveBack, Requeue, Tell
from wbengine.interop.celery.worker.jobs import Job

__all__ = ["Leaving"]

LOG = logging.getLogger(__name__)


class Leaving(standing.Standing):
    """Sees that each job leaves once; `telling`: events are wanted."""

    telling: bool
    _ends: ending.Endings

    def _close(
        self, job: Job, end: End, tell: Callable[..., Tell] | None, *details: Any
    ) -> list[Effect]:
        """Exactly one end for each job."""
        self.jobs.leaving[job.key] = job
        self._ended.note(job.key)
        if job.started is not None:
            self.successes += end.state == results.SUCCESS
            self.failures += end.state == results.FAILURE
        if tell is None or not self.telling:
            return [end]
        return [end, tell(job, end, *details), *telling.sent(end.steps)]

    def _revoke(self, job: Job, reason: str, now: float) -> list[Effect]:
        self._count(reason)
        LOG.info("%s is not run: %s" if reason != "terminated" else "%s was %s", job, reason)
        end = self._ends.revoked(job, reason, now)
        return self._close(job, end, telling.revoked, reason)

    def _lose(self, job: Job, now: float) -> list[Effect]:
        """Nobody knows what became of it."""
        self._count("lost")
        failure = ending.lost_before(job)
        end = self._ends.failed(job, failure, now)
        LOG.error("%s", failure.exception_str)
        return self._close(job, end, telling.failed)

    def _give_back(self, job: Job) -> list[Effect]:
        self._count("returned")
        self.jobs.returning.add(job)
        return [GiveBack(job)]

    def _requeue(self, job: Job) -> list[Effect]:
        """It may have begun elsewhere: whoever gets it next is to find out, too."""
        self._count("requeued")
        return [Requeue(job.receipt)]

    def on_done(self, job: Job, receipt: Any = None) -> list[Effect]:
        """An `End` or `GiveBack` is done; `receipt` is what was settled with it."""
        if job in self.jobs.returning:
            self.jobs.returning.discard(job)
        elif self.jobs.leaving.get(job.key) is job:
            del self.jobs.leaving[job.key]
        else:
            return []
        if receipt is not None and receipt is not job.receipt:
            return [Acknowledge(job.receipt)]  # it came again meanwhile
        return []
