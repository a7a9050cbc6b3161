"""Jobs of which nobody knows yet whether another worker runs them, or did.

A broker marks what it delivers again, and says no more than that: the worker that had it may be
dead, may only have lost its connection, or may have ended it meanwhile.  So all are asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine.interop.celery.worker.jobs import Job, Key

__all__ = ["ENDED", "LOST", "PAUSE", "Doubts", "Fates"]

#: What workers told of tasks, by id: `(state, description)` of each that knows it.
Fates = Mapping[str, Sequence[tuple[str, Any]]]

#: Seconds in which more of them come: whoever lost its connection had several.
_GATHER: Final = 0.2

#: Seconds between an answer and the next question.
PAUSE: Final = 3.0

#: A task is lost of which nobody knew in so many rounds, over so many seconds: a worker whose
#: connection broke has to be back, and to listen, before it can answer; a busy one may be late.
_ROUNDS: Final = 4
_LOST_AFTER: Final = 12.0

#: Seconds between two answers after which they are no series: the broker was away meanwhile.
_BREAK: Final = 10.0

#: What is known at last: it ran to its end elsewhere, or nobody will ever know.
ENDED: Final = "ended"
LOST: Final = "lost"


@dataclass(slots=True)
class _Silence:
    """Since when, until when, and how often nobody knew it."""

    since: float
    last: float
    rounds: int = 1


class Doubts:
    """Keeps the jobs of `doubtful`, and asks about all of them together, one question at a time.

    None is kept for more than `max_hold` seconds.
    """

    def __init__(self, doubtful: dict[Key, Job], max_hold: float | None) -> None:
        self._jobs = doubtful
        self._max_hold = max_hold
        self._silent: dict[Key, _Silence] = {}
        #: The question that is under way.
        self._asked: list[Job] | None = None
        self._next = 0.0

    def add(self, job: Job, now: float) -> None:
        """Find out about it."""
        soon = now + _GATHER
        self._next = min(self._next, soon) if self._jobs else soon
        self._jobs[job.key] = job

    def clear(self) -> list[Job]:
        """Find out about nothing any more; these are left."""
        left = list(self._jobs.values())
        self._jobs.clear()
        self._silent.clear()
        return left

    def next(self) -> float | None:
        """When there is something to ask, unless a question is under way."""
        return self._next if self._jobs and self._asked is None else None

    def overdue(self, now: float) -> list[Job]:
        """Those that were kept for too long; they are kept no more."""
        if self._max_hold is None:
            return []
        found = [job for job in self._jobs.values() if now - job.taken >= self._max_hold]
        for job in found:
            self._drop(job)
        return found

    def ask(self) -> list[str]:
        """The ids to ask about; `judge` is called with the answers."""
        self._asked = list(self._jobs.values())
        return list({job.id: None for job in self._asked})

    def judge(self, fates: Fates, now: float) -> Iterator[tuple[Job, str]]:
        """What is known now of some: `ENDED` or `LOST`; they are kept no more."""
        asked, self._asked = self._asked or [], None
        fresh = len(asked) < len(self._jobs)
        self._next = now + (_GATHER if fresh else PAUSE)
        for job in asked:
            if self._jobs.get(job.key) is not job:
                continue
            told = fates.get(job.id, ())
            if any(_is_end(job, state, details) for state, details in told):
                self._drop(job)
                yield job, ENDED
            elif any(state != ENDED for state, _ in told):
                self._silent.pop(job.key, None)
            elif self._is_lost(job, now):
                self._drop(job)
                yield job, LOST

    def _is_lost(self, job: Job, now: float) -> bool:
        silence = self._silent.get(job.key)
        if silence is None or now - silence.last > _BREAK:
            self._silent[job.key] = _Silence(now, now)
            return False
        silence.last = now
        silence.rounds += 1
        return silence.rounds >= _ROUNDS and now - silence.since >= _LOST_AFTER

    def _drop(self, job: Job) -> None:
        del self._jobs[job.key]
        self._silent.pop(job.key, None)


def _is_end(job: Job, state: str, details: Any) -> bool:
    """Whether that is the end of this try, or of a later one."""
    attempt = details.get("attempt") if isinstance(details, dict) else None
    return state == ENDED and isinstance(attempt, int) and attempt >= job.attempt
