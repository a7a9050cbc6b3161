"""What a worker tells of itself: who it is, what it offers, how busy it is, and how it lives."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from futurist import periodics

from wbengine import __version__
from wbengine import exceptions as exc
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life as lives
from wbengine.engines.worker_based.worker_side.effects import Effect, Reply
from wbengine.engines.worker_based.worker_side.jobs import Jobs

LOG = logging.getLogger(__name__)

#: Seconds between two beats, unless an engine asks for more frequent ones.
PERIOD: Final = 5.0


class Heartbeat:
    """One worker process, on the topics that it serves, which `queues` maps to their queues.

    `offer` is what it does, `stats` its life so far, `roll` its jobs.  `plain`: it tells of its
    topic and its tasks, as TaskFlow's do, and of nothing else.  (The next question may reach
    another worker of that topic: engines could not count on beats.)
    """

    def __init__(
        self,
        identity: str,
        queues: Mapping[str, str],
        offer: endpoints.Offer,
        stats: lives.WorkerStats,
        roll: Jobs,
        plain: bool = False,
    ) -> None:
        self._identity = identity
        self._queues = dict(queues)
        self._offer = offer
        self._stats = stats
        self._roll = roll
        self._plain = plain
        #: What runs besides requests: ids, names, and when each was begun.
        self.besides: Callable[[], Iterable[tuple[str, str, float]]] = tuple

    @property
    def life(self) -> lives.Life:
        rows = [(job.id, job.name, job.began) for job in self._roll.begun.values()]
        rows += self.besides()
        return self._stats.life(
            ((id, name) for id, name, _ in rows), (since for _, _, since in rows)
        )

    def introduce(self, listener: str, period: float | None) -> list[Effect]:
        """Tell an engine (by its routing key) what is offered, as it asked, or all engines."""
        if self._plain and not self._stats.takes:
            return []  # an empty list would be taken for what all of the topic offer
        self._stats.serving = True
        state = env.BEAT if self._stats.ending else env.READY
        return self.tell([listener], state, period)

    def beat(self, period: float) -> list[Effect]:
        """Tell the engines whose requests run here that they still do."""
        engines = dict.fromkeys(job.reply_to for job in self._roll.jobs.values() if job.ours)
        return self.tell(engines, env.BEAT, period)

    def tell(self, listeners: Iterable[str], state: str, period: float | None) -> list[Effect]:
        """A message for each listener (by its routing key) and topic."""
        if self._plain:  # TaskFlow's engines ask: nobody listens to what they did not ask for
            listeners = [to for to in listeners if to != env.ALL_ENGINES]
        ids: dict[str, list[str]] = {}
        for job in dict.fromkeys(self._roll.held()):
            ids.setdefault(job.reply_to, []).append(job.id)
        headers = self._headers(state, period)
        return [
            Reply(None, self._notice(to, topic, state, headers, ids.get(to, [])))
            for to in listeners
            for topic in self._queues
        ]

    def _headers(self, state: str, period: float | None) -> dict[str, Any]:
        running, slots = len(self._roll.jobs), self._roll.slots
        # Slots are free for no engine while nothing is taken.
        running = min(running, slots) if self._stats.takes else slots
        headers: dict[str, Any] = {
            env.WBE_VERSION: env.VERSION,
            env.WBE_WORKER: self._identity,
            env.WBE_STATE: state,
            env.WBE_SLOTS: slots,
            env.WBE_RUNNING: running,
            env.WBE_LIFE: self.life.to_header(),
        }
        if state == env.READY:
            headers[env.WBE_SOFTWARE] = __version__
            if self._offer.ledger is not None:
                headers[env.WBE_LEDGER] = self._offer.ledger
        if period is not None:
            headers[env.WBE_PERIOD] = period
        return headers

    def _notice(
        self, listener: str, topic: str, state: str, headers: Mapping[str, Any], ids: list[str]
    ) -> env.Envelope:
        """`ids` are the listener's requests that this worker has, or did not answer yet."""
        body = {"topic": topic, "tasks": list(self._offer.names) if state == env.READY else []}
        if self._plain:
            return env.Envelope(pr.NOTIFY, body, routing_key=listener)
        more: dict[str, Any] = {**headers, env.WBE_QUEUE: self._queues[topic]}
        if listener != env.ALL_ENGINES:
            more[env.WBE_IDS] = ids
        return env.Envelope(pr.NOTIFY, body, routing_key=listener, headers=more)


class Beats:
    """The thread that beats, and never runs tasks: `beat(now)` is called when one is due.

    Whoever beats within a `period` is not taken for lost within another: what is claimed now is
    certainly not given to somebody else until a period from now.  All times are those of one
    monotonic clock.
    """

    def __init__(self, identity: str, beat: Callable[[float], None]) -> None:
        self._identity = identity
        self._beat = beat
        self.period = PERIOD
        #: Where it has to say that it lives, besides.
        self.ledger: ledgers.Ledger | None = None
        #: When it should be said again there.
        self.due = -math.inf
        # Whether it could not be when that was tried last.
        self._ailing = False
        self._worker: periodics.PeriodicWorker | None = None
        self._changing = threading.Lock()

    def start(self, *, at_once: bool = True) -> None:
        """Begin, with a beat or, unless `at_once`, a period from now."""
        # A lambda: futurist sets attributes on what it calls, a bound method takes none.
        beat = periodics.periodic(self.period, run_immediately=at_once)(
            lambda: self._beat(time.monotonic())
        )
        self._worker = periodics.PeriodicWorker([(beat, (), {})])
        threading.Thread(target=self._worker.start, name="wbengine-beats", daemon=True).start()

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def obey(self, envelope: env.Envelope) -> None:
        """Beat as often as an engine wants it, if that is more often than until now."""
        asked = envelope.seconds(env.WBE_PERIOD)
        if asked is None or asked >= self.period or self.period <= env.LEAST_PERIOD:
            return
        with self._changing:
            before, self.period = self.period, max(env.LEAST_PERIOD, min(asked, self.period))
            self.due -= (before - self.period) / 2
            if self._worker is not None and self.period < before:
                self.stop()
                self.start(at_once=False)

    def renew(self, now: float) -> None:
        """Tell the ledger that this worker lives, unless it was told a moment ago.

        Never raises for a ledger that is away: it is told with the next beat.
        """
        if self.ledger is None or now < self.due:
            return
        try:
            self.ledger.renew(self._identity)
        except exc.LedgerFailure as error:
            if not self._ailing:
                LOG.warning("the ledger cannot be told that this worker lives: %s", error)
            self._ailing = True
        else:
            self.due = now + self.period / 2
            self._ailing = False
