"""What fires schedules: a part of `wbengine serve`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent import futures
from typing import Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.engines import allowed, submission
from wbengine.jobs import base as jobs
from wbengine.jobs import stored
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base
from wbengine.schedules import ticks
from wbengine.schedules.store import Entry, Schedules

__all__ = ["ScheduleService"]

LOG: Final = logging.getLogger(__name__)


class ScheduleService:
    """Fires the schedules in a database; any number of processes may do so.

    A firing is one transaction: the schedule has its next tick, if it still has the one that was
    read, and the flow of the tick is kept, with its job.  Where `board` is elsewhere, the job is
    posted afterwards: whoever serves the board does that, if this process dies before.

    :param clock: returns unix seconds, rather than the clock of the database.
    :param flows: what may be called to make flows (see `engines.flow_from_detail`).
    """

    #: Seconds between two looks, at most: for what others changed.
    LOOK_SECONDS: Final = 5.0
    #: Seconds between two looks at a flow that keeps the next one from being fired.
    HELD_SECONDS: Final = 1.0
    #: Seconds for which a schedule is left alone that could not be fired; others may be able to.
    RETRY_SECONDS: Final = 10.0
    #: What makes a flow may be slow: after so many seconds others are fired meanwhile, unless so
    #: many are slow.
    SLOW_SECONDS: Final = 1.0
    MOST_SLOW: Final = 16

    def __init__(
        self,
        persistence: base.Backend,
        board: jobs.JobBoard,
        *,
        clock: Callable[[], float] | None = None,
        flows: allowed.Flows = None,
    ) -> None:
        self.schedules: Final = Schedules(persistence, clock=clock)
        self._board = board
        self._flows = allowed.of_process(flows)
        # Until when, on the monotonic clock, by name.
        self._left_alone: dict[str, float] = {}
        self._pool = futures.ThreadPoolExecutor(self.MOST_SLOW, "wbengine-firing")
        # Those that are slow, by name.
        self._under_way: dict[str, futures.Future[float]] = {}

    def fire_due(self, is_ended: Callable[[], bool] = lambda: False) -> float:
        """Fire what is due, a tick of each schedule; seconds until there is more to do.

        :param is_ended: asked before each schedule; true: the others are left to another look.
        :raises StorageFailure: the database cannot be used.
        """
        wait = self.LOOK_SECONDS
        for now, entries in self.schedules.due(self.LOOK_SECONDS):
            for entry in entries:
                if is_ended():
                    return 0.0
                wait = min(wait, self._begin(entry, now))
        return wait

    def _begin(self, entry: Entry, now: float) -> float:
        """Have one fired, which is waited for unless it is slow; seconds until there is more."""
        earlier = self._under_way.pop(entry.name, None)
        done = self._pool.submit(self._handle, entry, now) if earlier is None else earlier
        futures.wait([done], self.SLOW_SECONDS if earlier is None else 0.0)
        if done.done():
            return done.result() if earlier is None else 0.0
        self._under_way[entry.name] = done
        return self.HELD_SECONDS

    def close(self) -> None:
        """Wait until nothing is fired any more."""
        self._pool.shutdown()

    def _handle(self, entry: Entry, now: float) -> float:
        wait = self._left_alone.get(entry.name, 0.0) - time.monotonic()
        if wait > 0:
            return wait
        self._left_alone.pop(entry.name, None)
        try:
            return self._do(entry, now)
        except (exceptions.StorageFailure, exceptions.JobFailure):
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # of what makes the flow
            LOG.warning("Schedule %s could not be fired: %s", entry.name, error, exc_info=True)
            self.schedules.note_trouble(entry, f"{type(error).__name__}: {error}")
            self._left_alone[entry.name] = time.monotonic() + self.RETRY_SECONDS
            return self.RETRY_SECONDS

    def _do(self, entry: Entry, now: float) -> float:
        entry.check_readable()
        entry.check_trusted()
        schedule = entry.schedule
        if entry.wanted is not None:
            self._fire(entry, int(now), entry.wanted, lambda it: self.schedules.grant(it, entry))
            return 0.0
        if entry.due > now:
            return entry.due - now
        busy = schedule.overlap != ticks.ALLOW and self._is_busy(entry)
        step = schedule.step(entry.next_tick, now, busy=busy)
        if step is None:
            if schedule.overlap == ticks.CANCEL:
                self._cancel(entry)
            return self.HELD_SECONDS
        if step.tick is None:
            self.schedules.skip(entry, step)
            LOG.info("Schedule %s: a tick is left out", entry.name)
        else:
            uuid = schedule.flow_id(step.tick)
            self._fire(
                entry, step.tick, uuid, lambda it: self.schedules.advance(it, entry, step, uuid)
            )
        return 0.0  # the next tick may be due

    def _fire(
        self, entry: Entry, tick: int, uuid: str, advance: Callable[[sa.Connection], bool]
    ) -> None:
        schedule = entry.schedule
        flow, _ = submission.new_flow(
            schedule.factory,
            inputs=schedule.inputs_at(tick),
            tags=schedule.tags_at(tick),
            uuid=uuid,
            flows=self._flows,
        )
        book, board = submission.new_book(flow), self._board
        priority = jobs.JobPriority.convert(schedule.priority)
        if isinstance(board, stored.StoredJobBoard):
            stored.note_submitted(flow.meta, board, priority)
            done = self.schedules.backend.keep_new_books([book], advance)
            if done:
                board.repost(flow.uuid, flow.name, book, priority)
        else:
            assert isinstance(board, impl_sql.SQLJobBoard)
            done = board.post_flow(flow.name, book, flow, priority, first=advance) is not None
        if done:
            LOG.info("Schedule %s fired flow %s for %s", entry.name, uuid, ticks.iso(tick))

    def _is_busy(self, entry: Entry) -> bool:
        """Whether the flow that was fired last has not ended; one that was put aside has."""
        flow, board = entry.last_flow, self._board
        if flow is None or not self.schedules.is_unfinished(flow):
            return False
        return not (isinstance(board, jobs.FlowBoard) and board.is_trashed(flow))

    def _cancel(self, entry: Entry) -> None:
        assert entry.last_flow is not None
        handle = submission.FlowHandle(entry.last_flow, self.schedules.backend, self._board)
        try:
            handle.cancel(f"schedule {entry.name} is due again")
        except exceptions.NotFound:  # it was deleted meanwhile
            return
