"""Announcements and heartbeats of a worker: identity, tasks, load and state."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from futurist import periodics

from wbengine import __version__
from wbengine import exceptions as exc
from wbengine._concurrency import threads
from wbengine._text import data_formats
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import notices
from wbengine.engines.worker_based._messages import worker_life as lives
from wbengine.engines.worker_based._worker_side.jobs import Jobs, Offer
from wbengine.engines.worker_based._worker_side.server_effects import Effect, Reply
from wbengine.transports import _ledger as ledgers

LOG = logging.getLogger(__name__)

#: Default seconds between two heartbeats; an engine may request a shorter period.
PERIOD_SECONDS: Final = 5.0


@dataclass(eq=False)
class Heartbeat:
    """Creates the announcements and heartbeats of one worker process.

    If `plain`, messages contain only topic and tasks, like those of TaskFlow.
    """

    identity: str
    topics: Sequence[str]
    offer: Offer
    stats: lives.WorkerStats
    job_table: Jobs
    plain: bool
    code_version: str | None
    #: Returns ids, names and start times of tasks that run without a request.
    extra_tasks: Callable[[], Iterable[tuple[str, str, float]]] = tuple

    @property
    def life(self) -> lives.Life:
        rows = [(job.id, job.name, job.began) for job in self.job_table.begun.values()]
        rows += self.extra_tasks()
        return self.stats.life(
            ((id, name) for id, name, _ in rows), (since for _, _, since in rows)
        )

    def announce_tasks(self, listener: str, period: float | None) -> list[Effect]:
        """Announce the tasks to one engine (by its routing key) or to all engines."""
        if self.plain and not self.stats.accepts:
            return []  # An empty list would apply to all workers of the topic.
        self.stats.serving = True
        state = notices.BEAT if self.stats.ending else notices.READY
        return self.create([listener], state, period)

    def beat(self, period: float) -> list[Effect]:
        engines = dict.fromkeys(
            job.reply_to for job in self.job_table.jobs.values() if job.extended
        )
        return self.create(engines, notices.BEAT, period)

    def create(self, listeners: Iterable[str], state: str, period: float | None) -> list[Effect]:
        if self.plain:  # Engines of TaskFlow process only replies to their own NOTIFY.
            listeners = [to for to in listeners if to != env.ALL_ENGINES]
        ids: dict[str, list[str]] = {}
        for job in dict.fromkeys(self.job_table.held()):
            ids.setdefault(job.reply_to, []).append(job.id)
        running, slots = len(self.job_table.jobs), self.job_table.slots
        notice = notices.Heartbeat(
            "",
            (),
            extended=not self.plain,
            worker=self.identity,
            state=state,
            slots=slots,
            # A worker that accepts no requests reports that all slots are used.
            running=min(running, slots) if self.stats.accepts else slots,
            life=self.life,
            period=period,
        )
        if state == notices.READY:
            notice = notice._replace(
                tasks=self.offer.names,
                software=__version__,
                ledger=self.offer.ledger,
                formats=data_formats.MESSAGE.read,
                code=self.code_version,
            )
        effects: list[Effect] = []
        for to in listeners:
            own_ids = None if to == env.ALL_ENGINES else ids.get(to, [])
            for topic in self.topics:
                message = notice._replace(topic=topic, ids=own_ids).to_message(to)
                effects.append(Reply(None, message))
        return effects


class Beats:
    """The thread that calls `beat(now)` for each heartbeat. It never runs tasks.

    A worker with a heartbeat within the last `period` is not considered lost for another period.
    So it certainly owns a newly claimed request for at least one period. All times are on the same
    monotonic clock.
    """

    def __init__(self, identity: str, beat: Callable[[float], None]) -> None:
        self._identity = identity
        self._beat = beat
        self.period = PERIOD_SECONDS
        #: The ledger that stores heartbeats, if any.
        self.ledger: ledgers.Ledger | None = None
        #: Time of the next heartbeat to the ledger.
        self.due = -math.inf
        # Whether the last heartbeat to the ledger failed.
        self._is_failing = False
        self._worker: periodics.PeriodicWorker | None = None
        self._period_lock = threading.Lock()

    def start(self, *, at_once: bool = True) -> None:
        # futurist sets attributes on the function; bound methods do not permit that.
        beat = periodics.periodic(self.period, run_immediately=at_once)(
            lambda: self._beat(time.monotonic())
        )
        self._worker = periodics.PeriodicWorker([(beat, (), {})])
        threads.Thread(target=self._worker.start, name="wbengine-beats", daemon=True).start()

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def adopt_period(self, requested_period: float | None) -> None:
        """Use the period that an engine requests, if it is shorter than the present one."""
        if requested_period is None:
            return
        period = max(notices.MIN_PERIOD_SECONDS, requested_period)
        with self._period_lock:
            if period < self.period:
                self.due -= (self.period - period) / 2  # As if `renew` had used this period.
                self.period = period
                if self._worker is not None:
                    self.stop()
                    self.start(at_once=False)

    def renew(self, now: float) -> None:
        """Send a heartbeat to the ledger if one is due. After an error, the next call retries."""
        if self.ledger is None or now < self.due:
            return
        try:
            self.ledger.renew(self._identity)
        except exc.LedgerFailure as error:
            if not self._is_failing:
                LOG.warning(
                    "the heartbeat of this worker cannot be written to the ledger: %s", error
                )
            self._is_failing = True
        else:
            self.due = now + self.period / 2
            self._is_failing = False
