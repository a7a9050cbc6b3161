"""The service in `wbengine serve` that fires schedules."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent import futures
from typing import Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.engines import _allowed, _submission
from wbengine.jobs import base as jobs
from wbengine.persistence import base
from wbengine.schedules import _firing, _ticks
from wbengine.schedules._store import Entry, Schedules

__all__ = ["ScheduleService"]

LOG: Final = logging.getLogger(__name__)


class ScheduleService:
    """A service that fires the schedules in a database. Several processes may run it.

    A firing is one transaction: it advances the schedule, if its next tick is still the one that
    was read, and saves the flow of the tick with its job. If `board` is in another store, the job
    is posted afterwards. If that fails, or this process dies before, a conductor of the board posts
    it.

    :param clock: returns Unix seconds; replaces the clock of the database.
    :param flows: factories that may be called (see `engines.flow_from_detail`).
    """

    #: Maximum interval between two polls for changes.
    POLL_SECONDS: Final = 5.0
    #: Interval between two polls of a flow that delays the next firing.
    BUSY_POLL_SECONDS: Final = 1.0
    #: Time for which this process skips a schedule after an error; other processes may fire it.
    RETRY_SECONDS: Final = 10.0
    #: A factory may be slow. After this time (None: never), other schedules are fired meanwhile,
    #: unless `MAX_SLOW` factories are slow.
    SLOW_SECONDS: float | None = 1.0
    MAX_SLOW: Final = 16

    def __init__(
        self,
        persistence: base.Backend,
        board: jobs.JobBoard,
        *,
        clock: Callable[[], float] | None = None,
        flows: _allowed.Flows = None,
    ) -> None:
        self.schedules: Final = Schedules(persistence, clock=clock)
        self._firing = _firing.Firing(self.schedules.backend, board, _allowed.of_process(flows))
        # End of the pause after an error, by name, on the monotonic clock.
        self._paused_until: dict[str, float] = {}
        self._pool = futures.ThreadPoolExecutor(self.MAX_SLOW, "wbengine-firing")
        self._in_progress: dict[str, futures.Future[float]] = {}

    def fire_due(self, is_ended: Callable[[], bool] = lambda: False) -> float:
        """Fire one due tick of each schedule. Return the seconds until the next call.

        :param is_ended: called before each schedule; if it returns True, the remaining ones are
            skipped.
        :raises StorageFailure: if the database fails.
        """
        wait = self.POLL_SECONDS
        for now, entries in self.schedules.due(self.POLL_SECONDS):
            for entry in entries:
                if is_ended():
                    return 0.0
                wait = min(wait, self._begin(entry, now))
        return wait

    def _begin(self, entry: Entry, now: float) -> float:
        """Fire a schedule and wait unless it is slow. Return the seconds until the next call."""
        earlier = self._in_progress.pop(entry.name, None)
        firing = self._pool.submit(self._handle, entry, now) if earlier is None else earlier
        futures.wait([firing], self.SLOW_SECONDS if earlier is None else 0.0)
        if firing.done():
            return firing.result() if earlier is None else 0.0
        self._in_progress[entry.name] = firing
        return self.BUSY_POLL_SECONDS

    def close(self) -> None:
        """Wait until all firings in progress have ended."""
        self._pool.shutdown()

    def _handle(self, entry: Entry, now: float) -> float:
        wait = self._paused_until.get(entry.name, 0.0) - time.monotonic()
        if wait > 0:
            return wait
        self._paused_until.pop(entry.name, None)
        try:
            return self._process(entry, now)
        except BaseException as error:  # Errors of the factory, or of the store of this flow.
            LOG.warning("cannot fire schedule %s: %s", entry.name, error, exc_info=True)
            # If the database itself has failed, this raises an error, which ends the poll.
            self.schedules.note_trouble(entry, f"{type(error).__name__}: {error}")
            self._paused_until[entry.name] = time.monotonic() + self.RETRY_SECONDS
            return self.RETRY_SECONDS

    def _process(self, entry: Entry, now: float) -> float:
        entry.check_readable()
        entry.check_trusted()
        schedule = entry.schedule
        if entry.wanted is not None:
            self._fire(entry, int(now), entry.wanted, lambda it: self.schedules.grant(it, entry))
            return 0.0
        if entry.due > now:
            return entry.due - now
        busy = schedule.overlap != _ticks.ALLOW and self._is_busy(entry)
        step = schedule.step(entry.next_tick, now, busy=busy, pauses=entry.pauses)
        if step is None:
            if schedule.overlap == _ticks.CANCEL:
                self._cancel(entry)
            return self.BUSY_POLL_SECONDS
        if step.tick is None:
            self.schedules.skip(entry, step)
            LOG.info("schedule %s: firing skipped", entry.name)
        else:
            uuid = schedule.flow_id(step.tick)
            self._fire(
                entry, step.tick, uuid, lambda it: self.schedules.advance(it, entry, step, uuid)
            )
        return 0.0  # The next tick may be due.

    def _fire(
        self, entry: Entry, tick: int, uuid: str, advance: Callable[[sa.Connection], bool]
    ) -> None:
        if self._firing.fire(entry.schedule, tick, uuid, advance):
            LOG.info("schedule %s submitted flow %s for %s", entry.name, uuid, _ticks.iso(tick))

    def _is_busy(self, entry: Entry) -> bool:
        """Return True if the latest fired flow has not ended and its job is not in the trash."""
        flow = entry.last_flow
        if flow is None or not self.schedules.unfinished([flow]):
            return False
        return self._firing.is_busy(flow)

    def _cancel(self, entry: Entry) -> None:
        assert entry.last_flow is not None
        handle = _submission.FlowHandle(entry.last_flow, self.schedules.backend, self._firing.board)
        try:
            handle.cancel(f"schedule {entry.name} fires again")
        except exceptions.NotFound:
            return
