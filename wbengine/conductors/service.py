"""What `wbengine serve` runs: a conductor of a job board, schedules, and a look for flows without a
job.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.conductors.backends import impl_nonblocking
from wbengine.engines import allowed
from wbengine.jobs import base as jobs
from wbengine.jobs import stored
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base, models, owners
from wbengine.persistence.backends import sql
from wbengine.schedules.service import ScheduleService
from wbengine.schedules.ticks import Schedule

__all__ = ["ConductorService"]

LOG: Final = logging.getLogger(__name__)

#: A flow in one of these has an engine, unless that died.
_UNDER_WAY: Final = (states.RUNNING, states.SUSPENDING, states.RESUMING)
_NOT_BEGUN: Final = (states.PENDING,)
#: A flow is looked at once; those created so many seconds before the newest, at each look.
_OVERLAP: Final = 60.0
#: Seconds between two tries to connect a board that is away.
_AGAIN: Final = 1.0


class ConductorService:
    """Runs submitted flows, resumes those whose engine died, and fires schedules.

    Their jobs are on `board` (default: that in the database of `persistence`), which is connected,
    and closed at the end.

    A flow whose engine died, and which has no job, is given one: by one of several services, and
    once.  So is a flow that was submitted to `board` by a program that died before it posted the
    job.  Flows that do not say what made them are left alone, and those submitted to another board.

    `engine` (a kind, or a URI) and `engine_options` say how flows are run, and `max_simultaneous`
    how many at a time (default: one more than there are processors).  `schedules` are kept when it
    begins, in the place of those of their names, where `persistence` is a database; `clock` is
    theirs, if not that of the database.  `flows` are what may be called to make flows (see
    `engines.flow_from_detail`).

    :raises ValueError: there is no `board`, and `persistence` is no database; or `board` does not
        keep the job of a flow under its uuid.
    """

    #: Seconds between two looks for flows whose engine died.
    LOOK_SECONDS: Final = 5.0

    def __init__(
        self,
        persistence: base.Backend,
        *,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        max_simultaneous: int | None = None,
        board: jobs.JobBoard | None = None,
        schedules: Iterable[Schedule] = (),
        clock: Callable[[], float] | None = None,
        flows: allowed.Flows = None,
    ) -> None:
        self.name: Final = f"{socket.gethostname()}:{os.getpid()}"
        self._persistence = persistence
        self._board = board or impl_sql.SQLJobBoard("served", persistence=persistence)
        if not isinstance(self._board, jobs.FlowBoard):
            raise ValueError(f"{self._board!r} does not keep the job of a flow under its uuid")
        self._reposting: jobs.FlowBoard = self._board
        # Flows that were looked at, of those created last, and when the newest of them was.
        self._seen: set[str] = set()
        self._newest: float | None = None
        # The board as it was at the last look.
        self._identity: stored.Identity | None = None
        self._conductor = impl_nonblocking.NonBlockingConductor(
            self.name,
            self._board,
            persistence,
            engine,
            engine_options,
            max_simultaneous_jobs=max_simultaneous,
            flows=flows,
        )
        self._schedules = (
            ScheduleService(persistence, self._board, clock=clock, flows=flows)
            if isinstance(persistence, sql.SQLBackend)
            else None
        )
        self._declared = tuple(schedules)
        for schedule in self._declared:
            allowed.note_named(schedule.factory)
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._connecting = False

    def connect(self) -> bool:
        """Connect the board, and wait for one that is away; False: `stop` was called."""
        told, self._connecting = False, True
        try:
            while not self._ended.is_set():
                try:
                    self._board.connect()
                except exceptions.JobFailure as error:
                    if not told:
                        LOG.warning("waiting for the job board: %s", error)
                    told = True
                    self._ended.wait(_AGAIN)
                else:
                    return True
            return False
        finally:
            self._connecting = False

    def run(self) -> None:
        """Until `stop` is called, and what runs has been suspended.

        :raises JobFailure: the board cannot be used.
        """
        self._board.connect()
        works = {"wbengine-lost-flows": self._look}
        if self._schedules is not None:
            for schedule in self._declared:
                self._schedules.schedules.declare(schedule)
            works["wbengine-schedules"] = functools.partial(self._fire, self._schedules)
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True) for name, work in works.items()
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._conductor.run()
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
            if self._schedules is not None:
                self._schedules.close()
            self._board.close()

    def stop(self) -> None:
        """Take no more jobs; flows are suspended after what runs, for others to go on with.

        From any thread.  Does not wait.
        """
        self._ended.set()
        self._conductor.stop()

    def responds(self, seconds: float) -> bool:
        """Whether it takes jobs, runs flows, or waits for the board."""
        return self._connecting or self._conductor.dispatching

    @property
    def trouble(self) -> str | None:
        """Why it takes no jobs now; None: it does.  Asks the board."""
        if self._ended.is_set():
            return "it is ending"
        for thread in self._threads:
            if thread.ident is not None and not thread.is_alive():
                return f"its thread {thread.name} has ended"
        try:
            next(self._board.iterjobs(), None)
        except exceptions.JobFailure as error:
            return str(error)
        return None

    def _fire(self, schedules: ScheduleService) -> None:
        while True:
            try:
                wait = schedules.fire_due(self._ended.is_set)
            except Exception as error:  # the next look may succeed
                LOG.warning("Schedules cannot be looked at: %s", error)
                wait = schedules.LOOK_SECONDS
            if self._ended.wait(wait):
                return

    def _look(self) -> None:
        while True:
            try:
                if isinstance(self._board, stored.StoredJobBoard):
                    self._look_at_all_if_changed(self._board)
                self._resume_lost()
                if isinstance(self._board, stored.StoredJobBoard):
                    self._post_unposted()
            except Exception as error:  # the next look may succeed
                LOG.warning("Flows without a job cannot be looked for: %s", error)
                self._identity = None
            # Several services do not look all at once.
            if self._ended.wait(self.LOOK_SECONDS * random.uniform(0.7, 1.3)):
                return

    def _look_at_all_if_changed(self, board: stored.StoredJobBoard) -> None:
        """Look at all flows once more where the board may have lost jobs."""
        found = board.identify()
        if found != self._identity:
            self._identity, self._newest, self._seen = found, None, set()

    def _resume_lost(self) -> None:
        """Post a job for each flow whose engine died."""
        with contextlib.closing(self._persistence.get_connection()) as connection:
            for row in _listed(connection, _UNDER_WAY):
                if row.lease is None or owners.died(row.lease):
                    self._post(connection, row, _UNDER_WAY)

    def _post_unposted(self) -> None:
        """Post a job for each flow that was submitted to the board, and has none.

        Each flow is looked at once, and all of them once more after a look that failed, or when the
        board may have lost jobs.
        """
        since = None if self._newest is None else self._newest - _OVERLAP
        seen = set[str]()
        with contextlib.closing(self._persistence.get_connection()) as connection:
            for row in _listed(connection, _NOT_BEGUN, since):
                if row.uuid not in self._seen:
                    self._post(connection, row, _NOT_BEGUN)
                seen.add(row.uuid)
                self._newest = max(self._newest or 0.0, row.created or 0.0)
        self._seen = seen

    def _post(self, connection: base.Connection, row: base.FlowRow, among: Collection[str]) -> None:
        """Post the job of a flow that is in one of these states, unless others are to."""
        try:
            detail = connection.get_flow_details(row.uuid, lazy=True)
        except exceptions.NotFound:  # it was deleted meanwhile
            return
        if (detail.state or states.PENDING) not in among or detail.noted(models.FACTORY) is None:
            return
        priority = stored.submitted(detail.meta, self._board)
        if priority is None:
            if among is _NOT_BEGUN or stored.is_noted(detail.meta):
                return  # nobody submitted it, or for those who serve another board
            priority = jobs.JobPriority.NORMAL
        book = models.LogBook(row.book_name, row.book_uuid)
        if self._reposting.repost(row.uuid, row.name, book, priority) is not None:
            what = "had no job, and is given one"
            if among is _UNDER_WAY:
                what = "has lost its engine, and is resumed"
            LOG.warning("Flow %s (%s) %s", row.name, row.uuid, what)


def _listed(
    connection: base.Connection, among: Collection[str], since: float | None = None
) -> Iterator[base.FlowRow]:
    """The flows in these states, the oldest first."""
    after = None
    while True:
        page = connection.list_flows(states=among, newest_first=False, since=since, after=after)
        yield from page.flows
        after = page.after
        if after is None:
            return
