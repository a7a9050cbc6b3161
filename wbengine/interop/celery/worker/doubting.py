"""Jobs of which nobody knows yet whether another worker runs them, or did.

What was noted as begun comes again when its worker died, lost its connection, or ended it while
the broker was away; what was only given to somebody may be a second copy of that, after a crash of
the broker.  So all workers are asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine.interop.celery.worker.jobs import Job, Key, Past

__all__ = ["DOUBTED", "ENDED", "FREE", "LOST", "SPARED", "Doubts", "Fates", "Patience"]

#: What workers told of tasks, by id: `(state, description)` of each that knows it.
Fates = Mapping[str, Sequence[tuple[str, Any]]]

#: A task that has begun is lost of which nobody knew in so many rounds, besides `lost_after`.
_ROUNDS: Final = 4

#: What is known at last: it ran to its end elsewhere, nobody will ever know, or nobody began it.
ENDED: Final = "ended"
LOST: Final = "lost"
FREE: Final = "free"

#: What workers of ours tell besides Celery's states: a task that has begun is in doubt there, and
#: one of which a note may say that it began there did not.
DOUBTED: Final = "doubted"
SPARED: Final = "spared"


@dataclass(frozen=True)
class Patience:
    """How long is waited for others; in seconds."""

    #: More of them come meanwhile: whoever lost its connection had several.
    gather: float = 0.2
    #: Between an answer and the next question.
    pause: float = 3.0
    #: A task that has begun is lost of which nobody knew for so long: a worker whose connection
    #: broke has to be back, and to listen, before it can answer; a busy one may be late.
    lost_after: float = 12.0
    #: Then whoever lost its connection when ours was lost, too, is back.
    back: float = 2.0
    #: Two answers are no series after so long: the broker was away meanwhile.
    gap: float = 10.0


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

    def __init__(
        self, doubtful: dict[Key, Job], max_hold: float | None, patience: Patience
    ) -> None:
        self._jobs = doubtful
        self._max_hold = max_hold
        self._patience = patience
        self._silent: dict[Key, _Silence] = {}
        #: The question that is under way, and when it was asked.
        self._asked: list[Job] | None = None
        self._asked_at = 0.0
        self._next = 0.0
        #: When the connection began that they came over.
        self.connected = -math.inf

    def add(self, job: Job, now: float) -> None:
        """Find out about it."""
        soon = now + self._patience.gather
        if job.past is Past.GIVEN:  # once is enough then
            soon = max(soon, self._back)
        self._next = min(self._next, soon) if self._jobs else soon
        self._jobs[job.key] = job

    @property
    def _back(self) -> float:
        """When the others are back."""
        return self.connected + self._patience.back

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
            self.drop(job)
        return found

    def ask(self, now: float) -> list[str]:
        """The ids to ask about; `judge` is called with the answers."""
        self._asked, self._asked_at = list(self._jobs.values()), now
        return list({job.id: None for job in self._asked})

    def judge(self, fates: Fates, now: float) -> Iterator[tuple[Job, str]]:
        """What is known now of some: `ENDED`, `LOST` or `FREE`; they are kept no more."""
        asked, self._asked = self._asked or [], None
        early = self._asked_at < self._back
        fresh = len(asked) < len(self._jobs)
        for job in asked:
            if self._jobs.get(job.key) is not job:
                continue
            fate = self._fate(job, fates.get(job.id, ()), now)
            if fate is not None:
                self.drop(job)
                yield job, fate
            else:
                fresh |= early and job.past is Past.GIVEN
        pause = self._patience.gather if fresh else self._patience.pause
        self._next = max(now + pause, self._back)

    def _fate(self, job: Job, told: Sequence[tuple[str, Any]], now: float) -> str | None:
        if any(_is_end(job, state, details) for state, details in told):
            return ENDED
        if any(_is_spared(job, state, details) for state, details in told):
            return FREE
        if any(_is_had(job, state) for state, _ in told):
            self._silent.pop(job.key, None)
            return None
        if job.past is Past.GIVEN:
            return FREE if self._asked_at >= self._back else None
        return LOST if self._is_lost(job, now) else None

    def _is_lost(self, job: Job, now: float) -> bool:
        silence = self._silent.get(job.key)
        if silence is None or now - silence.last > self._patience.gap:
            self._silent[job.key] = _Silence(now, now)
            return False
        silence.last = now
        silence.rounds += 1
        return silence.rounds >= _ROUNDS and now - silence.since >= self._patience.lost_after

    def drop(self, job: Job) -> None:
        """Find out about it no more."""
        del self._jobs[job.key]
        self._silent.pop(job.key, None)


def _is_end(job: Job, state: str, details: Any) -> bool:
    """Whether that is the end of this try, or of a later one."""
    attempt = details.get("attempt") if isinstance(details, dict) else None
    return state == ENDED and isinstance(attempt, int) and attempt >= job.attempt


def _is_had(job: Job, state: str) -> bool:
    """Whether somebody who will see to its end has it; who only doubts it, too, is none."""
    return state not in (ENDED, SPARED) and not (state == DOUBTED and job.past is Past.BEGUN)


def _is_spared(job: Job, state: str, details: Any) -> bool:
    """Whether its note was made for nothing."""
    notes = details.get("notes") if isinstance(details, dict) else None
    return state == SPARED and bool(job.note) and isinstance(notes, list) and job.note in notes
