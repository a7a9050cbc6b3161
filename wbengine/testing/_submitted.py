"""Execution of submitted flows in the thread of a test."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa

from wbengine import _sql as _sql_access
from wbengine import engines
from wbengine._concurrency.manual_clock import ManualClock
from wbengine._sql import dialects
from wbengine.conductors._outcomes import Action
from wbengine.conductors.backends import impl_blocking
from wbengine.engines import _loading
from wbengine.jobs import base as jobs
from wbengine.jobs._places import ALL_QUEUES
from wbengine.jobs.backends import impl_sql
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import tables
from wbengine.schedules import _service

__all__ = ["run_submitted"]

_JOBS: Final = tables.JOBS
#: Minimum of `not_before` of a job that waits for a time; 0 means that it is due.
_MIN_NOT_BEFORE: Final = 1.0

#: By clock and name of the store, the time of the clock to which the jobs were moved.
_moved_to: Final[weakref.WeakKeyDictionary[ManualClock, dict[str, float]]] = (
    weakref.WeakKeyDictionary()
)


def run_submitted(
    backend: _loading.Backend, *, clock: ManualClock | None = None
) -> list[engines.FlowHandle]:
    """Run all submitted flows that can run now in this thread, also those that they submit.

    Flows of all queues run one after the other, as a conductor with serial engines runs them. Flows
    that wait for a signal or for a time of more than 5 seconds remain, for a later call.

    :param backend: the store, which must be a database, and contain the jobs.
    :param clock: clock of the engines. Flows that wait for a time continue when the clock shows
        it, counted from its start, and schedules fire that are due on it.
    :returns: the handles of the flows, in the order of their execution.
    :raises ValueError: if `backend` is not a database.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_loading.opened_backend(backend))
        if not isinstance(store, _sql.SQLBackend):
            raise ValueError(f"backend must be a database, which contains jobs, got {store!r}")
        board = impl_sql.SQLJobBoard("tests", persistence=store)
        stack.enter_context(contextlib.closing(board))
        board.queues = (ALL_QUEUES,)
        flows: dict[str, None] = {}
        if clock is None:
            _Conductor(board, store, flows).run()
        else:
            board.connect()
            service = _service.ScheduleService(store, board, clock=clock.time)
            service.SLOW_SECONDS = None  # The flow of a slow factory runs in this call, too.
            stack.enter_context(contextlib.closing(service))
            is_complete = False
            while not is_complete:
                number, has_fired = len(flows), service.fire_due() <= 0
                _Conductor(board, store, flows, clock).run()
                is_complete = not has_fired and len(flows) == number
    return [engines.handle(uuid, backend=backend) for uuid in flows]


class _Conductor(impl_blocking.BlockingConductor):
    """Ends when no job can be claimed.

    :param flows: receives the flows that were run, each once.
    """

    def __init__(
        self,
        board: impl_sql.SQLJobBoard,
        store: _sql.SQLBackend,
        flows: dict[str, None],
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__("tests", board, store, "serial", {"clock": clock})
        self._store = store
        self._run_flows = flows
        self._clock = clock

    def _take(self, limit: int) -> list[jobs.Job]:
        if self._clock is not None:
            _move_jobs(self._store, self._clock)
        return super()._take(limit)

    def _sleep(self, seconds: float) -> None:
        if not _make_parents_due(self._store):
            self.stop()

    def _dispatch_job(self, job: jobs.Job) -> Action:
        if isinstance(job.details, Mapping) and "flow_uuid" in job.details:
            self._run_flows[job.details["flow_uuid"]] = None
        return super()._dispatch_job(job)


def _make_parents_due(store: _sql.SQLBackend) -> bool:
    """Make the jobs of parents due that wait for further ends of child flows.

    Return whether there are any.
    """
    now = dialects.now(store.options.dialect)
    is_waiting = (_JOBS.c.end_delay > 0) & (_JOBS.c.owner.is_(None))
    is_waiting &= (_JOBS.c.not_before > 0) & (
        _JOBS.c.not_before < sa.literal_column(now) + _JOBS.c.end_delay
    )
    statement = sa.update(_JOBS).where(is_waiting).values(not_before=0)
    return _sql_access.transact(
        store.engine,
        "Making parents due",
        lambda connection: connection.execute(statement).rowcount > 0,
    )


def _move_jobs(store: _sql.SQLBackend, clock: ManualClock) -> None:
    """Let jobs that wait be due earlier, by the time that the clock has advanced since.

    The board uses the clock of the database. A job that is due too early waits again.
    """
    moved_to, now = _moved_to.setdefault(clock, {}), clock.time()
    place = str(store.options.url)
    seconds = now - moved_to.get(place, clock.start)
    moved_to[place] = now
    if seconds > 0:
        moved = _JOBS.c.not_before - seconds
        is_waiting = (_JOBS.c.not_before >= _MIN_NOT_BEFORE) & (
            _JOBS.c.not_before < tables.LIMITED_NOT_BEFORE
        )
        at = sa.case((moved > _MIN_NOT_BEFORE, moved), else_=_MIN_NOT_BEFORE)
        statement = sa.update(_JOBS).where(is_waiting).values(not_before=at)
        store.prepare()
        _sql_access.transact(
            store.engine, "Moving jobs", lambda connection: connection.execute(statement)
        )
