"""What a worker does about its own life, and whom it tells of it."""

from __future__ import annotations

import abc
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from wbengine import _names
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life as lives
from wbengine.engines.worker_based.worker_side import presence as presences
from wbengine.engines.worker_based.worker_side.deeds import Effect, Reply
from wbengine.engines.worker_based.worker_side.jobs import Job, Jobs

__all__ = ["Announcing"]

LOG = logging.getLogger(__name__)


class Announcing(abc.ABC):
    """The half of a `Server` that knows no requests, except how many there are, and whose.

    `now` is in unix seconds everywhere.
    """

    def __init__(self, presence: presences.Presence, career: lives.Career, roll: Jobs) -> None:
        self._presence = presence
        self._career = career
        self._roll = roll
        #: How many tasks ended, and how many messages were not run, by what became of them.
        self.counts: Counter[str] = Counter()
        #: What runs besides requests: ids, names, and when each was begun.
        self.besides: Callable[[], Iterable[tuple[str, str, float]]] = tuple

    @abc.abstractmethod
    def _hand_back_all(self) -> list[Effect]: ...

    @property
    def life(self) -> lives.Life:
        """What this worker tells of itself."""
        rows = [(job.id, job.name, job.began) for job in self._roll.begun.values()]
        rows += self.besides()
        return self._career.life(
            ((id, name) for id, name, _ in rows), (since for _, _, since in rows)
        )

    @property
    def begun(self) -> list[Job]:
        """The jobs that hold a slot."""
        return list(self._roll.begun.values())

    @property
    def suspended(self) -> bool:
        return self._career.suspended

    def suspend(self, period: float | None = None) -> list[Effect]:
        """Take nothing new, until `resume`; what is not started goes back.  Idempotent."""
        if not self._career.takes:
            return []
        self._career.suspend()
        return self._tell_all(period) + self._hand_back_all()

    def resume(self, period: float | None = None) -> list[Effect]:
        """Take what comes again.  Idempotent; not after `drain`."""
        if not self._career.suspended or self._career.ending:
            return []
        self._career.resume()
        return self._tell_all(period)

    def drain(self, now: float, period: float | None = None) -> list[Effect]:
        """Take nothing new any more; what is not started goes back.  Idempotent."""
        if self._career.ending:
            return []
        self._career.end(now)
        return self._tell_all(period) + self._hand_back_all()

    def die(self, now: float, period: float | None = None) -> list[Effect]:
        """Say goodbye, and answer nothing any more: what still runs is given up.  Idempotent."""
        if self._career.death is not None:
            return []
        self._career.end(now, dead=True)
        effects = self.announce([env.ALL_ENGINES], env.STOPPED, period)
        self._roll.abandon()
        return effects

    def _tell_all(self, period: float | None) -> list[Effect]:
        return self.announce([env.ALL_ENGINES], env.BEAT, period)

    def on_notify(self, question: env.Envelope, period: float) -> list[Effect]:
        """Somebody asks who is there."""
        if question.reply_to is None:
            return []
        try:
            _names.check_label("reply_to", question.reply_to)
        except ValueError as error:
            LOG.warning("refused a question: %s", error)
            self.counts["unanswerable"] += 1
            return []
        if self._presence.plain and not self._career.takes:
            return []  # an empty list would be taken for what all of the topic offer
        return self.announce([question.reply_to], env.READY, period)

    def announce(
        self, listeners: Iterable[str], state: str, period: float | None = None
    ) -> list[Effect]:
        """Tell `listeners` (routing keys) who this is, once for each topic."""
        if state == env.READY:
            self._career.serving = True
            if self._career.ending:
                state = env.BEAT  # nothing is offered any more
        running, slots = len(self._roll.jobs), self._roll.slots
        # Slots are not free for anybody while nothing is taken.
        running = min(running, slots) if self._career.takes else slots
        held = dict.fromkeys(self._roll.held())
        made = self._presence.notices(listeners, state, self.life, running, held, period)
        return [Reply(None, notice) for notice in made]

    def beat(self, period: float) -> list[Effect]:
        """Tell the engines whose requests run here that they still do."""
        engines = dict.fromkeys(job.reply_to for job in self._roll.jobs.values() if job.ours)
        return self.announce(engines, env.BEAT, period)
