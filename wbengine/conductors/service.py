"""The service behind `wbengine serve`: a conductor, schedules, and repair of missing jobs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import engines, exceptions, states
from wbengine._concurrency import conditions, threads
from wbengine.conductors import _bulks, _code_versions, _retention_service
from wbengine.conductors.backends import impl_nonblocking
from wbengine.engines import _allowed
from wbengine.jobs import _stored
from wbengine.jobs import base as jobs
from wbengine.jobs._places import ALL_QUEUES, DEFAULT_QUEUE, Place, check_queue
from wbengine.jobs._queues import BaseJobQueues
from wbengine.jobs.backends import impl_sql
from wbengine.listeners import base as base_listeners
from wbengine.notifications import _reading, _service, _settings
from wbengine.operations._retention import Retention
from wbengine.persistence import _owners, base, models
from wbengine.persistence.backends import _sql
from wbengine.schedules._service import ScheduleService
from wbengine.schedules._ticks import Schedule

__all__ = ["ConductorService", "Retention"]

LOG: Final = logging.getLogger(__name__)

_PENDING_STATES: Final = (states.PENDING,)
_SUSPENDED_STATES: Final = (states.SUSPENDED,)
_COMMANDED_STATES: Final = (*_PENDING_STATES, *_SUSPENDED_STATES, *sorted(states.FLOW_ENDED))
_EVENTS: Final[Mapping[tuple[str, ...], str]] = {
    _PENDING_STATES: "had no job; posting one",
    _SUSPENDED_STATES: "is suspended and has a command; resuming it",
    _COMMANDED_STATES: "has a command and no job; posting one",
    states.FLOW_RUNNING: "lost its engine; resuming it",
}
#: Time before the newest flow from which flows are listed again, as some are stored late.
_OVERLAP_SECONDS: Final = 60.0
#: Interval at which all flows that have not begun are listed: some are stored long after their
#: creation, or by hosts whose clocks are behind.
_COMPLETE_SECONDS: Final = 300.0
_RECONNECT_SECONDS: Final = 1.0


class _Conductor(impl_nonblocking.NonBlockingConductor):
    def __init__(
        self,
        make_listeners: Sequence[Callable[[engines.Engine], base_listeners.Listener]],
        *args: Any,
        **kw: Any,
    ) -> None:
        super().__init__(*args, **kw)
        self._make_listeners = make_listeners

    def _listeners_from_job(
        self, job: jobs.Job, engine: engines.Engine
    ) -> list[base_listeners.Listener]:
        inherited = super()._listeners_from_job(job, engine)
        return [*inherited, *(make(engine) for make in self._make_listeners)]


class ConductorService:
    """Runs submitted flows, resumes flows whose engine died, and fires schedules.

    It also carries out operations on many flows (`operations._bulk`).

    If the engine of a flow died and the flow has no job, one of the services posts a job. The same
    applies if a suspended flow was cancelled, if a flow was requested to run again, or if a
    submission to `board` was interrupted before its job was posted. Flows without a recorded
    factory, and flows submitted to another board, are skipped.

    :param engine: kind or URI of the engines, with `engine_options`.
    :param max_simultaneous: maximum number of flows at a time; default: number of processors plus
        one.
    :param queues: names of the queues whose flows it runs, in this order; '*': all others. Default:
        the queue 'default'. Other queues than this one require a board in a database or in Redis.
    :param board: the job board; default: the board in the database of `persistence`. The service
        connects it, and closes it at the end.
    :param schedules: stored at the start, if `persistence` is a database. They replace schedules of
        the same names.
    :param clock: clock of the schedules; default: the clock of the database.
    :param flows: allowed factories (see `engines.flow_from_detail`).
    :param code_version: the version of the code of this process, with its `app`; `exact_code`: run
        no flows of earlier versions. See `code_versions.CodeVersions`.
    :param retention: ended flows are deleted after these times, such as {"success": "7d",
        "failure": "30d", "reverted": 86400, "max_flows": 1_000_000}. Flows in other states, and all
        flows by default, are kept.
    :param notify: destinations of messages about failed flows and other events, as in the table
        `[notify]` of wbengine.toml. The value of `hook` may be a function. `persistence` must be a
        database.
    :param listeners: called with each engine; their listeners are registered while its flow runs.
    :raises ValueError: if there is no `board` and `persistence` is not a database; or if `board`
        does not store the job of a flow under its uuid; or if `retention` or `notify` is invalid.
    :raises ImportError: if the hook of `notify` cannot be imported, or a package is missing.
    """

    POLL_SECONDS: Final = 5.0
    #: Time in which a message may be sent after `stop`. Otherwise another process repeats it.
    SEND_SECONDS: Final = 5.0

    def __init__(
        self,
        persistence: base.Backend,
        *,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        max_simultaneous: int | None = None,
        queues: Sequence[str] | None = None,
        board: jobs.JobBoard | None = None,
        schedules: Iterable[Schedule] = (),
        clock: Callable[[], float] | None = None,
        flows: _allowed.Flows = None,
        code_version: str | None = None,
        app: str | None = None,
        exact_code: bool = False,
        retention: Mapping[str, Any] | None = None,
        notify: Mapping[str, Any] | None = None,
        listeners: Iterable[Callable[[engines.Engine], base_listeners.Listener]] = (),
    ) -> None:
        self.name: Final = f"{socket.gethostname()}:{os.getpid()}"
        self._persistence = persistence
        self._board = board or impl_sql.SQLJobBoard("served", persistence=persistence)
        if not isinstance(self._board, jobs.FlowBoard):
            raise ValueError(f"board must be a FlowBoard, got {self._board!r}")
        self._reposting: jobs.FlowBoard = self._board
        self._serve(queues)
        # In a board in the store of the flows, each submission and each command posts the job.
        self._is_board_separate: Final = not (
            isinstance(self._board, impl_sql.SQLJobBoard) and self._board.keeps_flows
        )
        # Flows that were already checked, the creation time of the newest, and the time on the
        # monotonic clock at which all are listed again.
        self._seen: set[str] = set()
        self._newest: float | None = None
        self._complete_at = 0.0
        # Flows with damaged records; each is logged once.
        self._unreadable: set[str] = set()
        self._identity: _stored.Identity | None = None
        self._versions = _code_versions.CodeVersions(
            persistence, code_version, app, is_exact=exact_code
        )
        self._conductor = _Conductor(
            tuple(listeners),
            self.name,
            self._board,
            persistence,
            engine,
            engine_options,
            max_simultaneous_jobs=max_simultaneous,
            flows=flows,
            versions=self._versions,
        )
        self._schedules = (
            ScheduleService(persistence, self._board, clock=clock, flows=flows)
            if isinstance(persistence, _sql.SQLBackend)
            else None
        )
        #: The deletion of ended flows; None if all are kept.
        self.retention: Final = (
            _retention_service.RetentionService(persistence, Retention.parse(retention), self.name)
            if retention
            else None
        )
        #: The services that send notifications, one for each destination.
        self.notifications: Final = self._make_notifications(notify) if notify else []
        #: The execution of operations on many flows.
        self.bulks: Final = _bulks.BulkService(persistence, self.name)
        self._declared = tuple(schedules)
        for schedule in self._declared:
            _allowed.note_used(schedule.factory)
        self._ended = conditions.Event()
        self._threads: list[threading.Thread] = []
        self._senders: list[threading.Thread] = []
        self._connecting = False

    def _serve(self, queues: Sequence[str] | None) -> None:
        queues = self._served = (DEFAULT_QUEUE,) if queues is None else tuple(queues)
        self._queues: BaseJobQueues | None = None
        for name in queues:
            if name != ALL_QUEUES:
                check_queue(name)
        if isinstance(self._board, _stored.BaseStoredJobBoard):
            self._board.queues = queues
            self._queues = self._board.job_queues
        if self._queues is None and queues not in ((DEFAULT_QUEUE,), (ALL_QUEUES,)):
            raise ValueError("queues require a job board in a database or in Redis")

    def _make_notifications(self, settings: Mapping[str, Any]) -> list[_service.DestinationService]:
        if not isinstance(self._persistence, _sql.SQLBackend):
            raise ValueError(f"notify requires a database, got {self._persistence!r}")
        board = self._board if isinstance(self._board, impl_sql.SQLJobBoard) else None
        if board is not None and not board.keeps_flows:
            board = None
        reader = _reading.EventReader(self._persistence, board)
        schedules = None if self._schedules is None else self._schedules.schedules
        return [
            _service.DestinationService(
                self._persistence, destination, reader, schedules, self.name
            )
            for destination in _settings.parse_settings(settings)
        ]

    def connect(self) -> bool:
        """Connect the board, waiting while it is unavailable. Return False if `stop` was called."""
        warned, self._connecting = False, True
        try:
            while not self._ended.is_set():
                try:
                    self._board.connect()
                except exceptions.JobFailure as error:
                    if not warned:
                        LOG.warning("waiting for the job board: %s", error)
                    warned = True
                    self._ended.wait(_RECONNECT_SECONDS)
                else:
                    return True
            return False
        finally:
            self._connecting = False

    def run(self) -> None:
        """Run until `stop` is called and all flows are suspended.

        :raises JobFailure: if the board cannot be used.
        :raises StorageFailure: if the file of the store was deleted or replaced.
        """
        self._board.connect()
        self._versions.register()
        if isinstance(self._board, impl_sql.SQLJobBoard):
            self._board.refused_codes = self._versions.refused
        works: dict[str, Callable[[], None]] = {
            "wbengine-lost-flows": self._post_missing_jobs,
            "wbengine-reports": functools.partial(
                self._repeat, self._report, "cannot report this conductor", self.POLL_SECONDS
            ),
            "wbengine-bulks": functools.partial(
                self._repeat,
                self.bulks.run_due,
                "cannot carry out operations on many flows",
                self.bulks.POLL_SECONDS,
                self.bulks.release,
            ),
        }
        if self._schedules is not None:
            for schedule in self._declared:
                self._schedules.schedules.declare(schedule)
            works["wbengine-schedules"] = functools.partial(
                self._repeat,
                functools.partial(self._schedules.fire_due, self._ended.is_set),
                "cannot read the schedules",
                self._schedules.POLL_SECONDS,
            )
        if self.retention is not None:
            works["wbengine-retention"] = functools.partial(
                self._repeat,
                functools.partial(self.retention.run_due, self._ended.wait),
                "cannot delete ended flows",
                self.retention.PERIOD_SECONDS,
            )
        self._threads = [
            threads.Thread(target=work, name=name, daemon=True) for name, work in works.items()
        ]
        self._senders = [
            threads.Thread(
                target=self._repeat,
                args=(
                    each.run_due,
                    f"cannot collect notifications to {each.name}",
                    each.PERIOD_SECONDS,
                    each.release,
                ),
                name=f"wbengine-notify-{each.name}",
                daemon=True,
            )
            for each in self.notifications
        ]
        for thread in (*self._threads, *self._senders):
            thread.start()
        try:
            self._conductor.run()
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
            self._withdraw_code()
            until = time.monotonic() + self.SEND_SECONDS
            for thread in self._senders:
                thread.join(max(0.0, until - time.monotonic()))
            if self._schedules is not None:
                self._schedules.close()
            self._board.close()
        self._persistence.check_identity()

    def _withdraw_code(self) -> None:
        try:
            self._versions.withdraw()
        except exceptions.StorageFailure as error:
            LOG.debug("the code version was not withdrawn: %s", error)

    def stop(self) -> None:
        """Claim no more jobs, and suspend running flows for other conductors, without waiting.

        May be called from any thread.
        """
        self._ended.set()
        self._conductor.stop()

    @property
    def running_engines(self) -> list[engines.Engine]:
        """The engines of the flows that run now."""
        return self._conductor.running_engines

    def responds(self, seconds: float) -> bool:
        """Return True if it claims jobs, runs flows, or waits for the board."""
        return self._connecting or self._conductor.dispatching

    @property
    def trouble(self) -> str | None:
        """The reason why it claims no jobs now, or None. This reads the board."""
        if self._ended.is_set():
            return "the service is stopping"
        for thread in (*self._threads, *self._senders):
            if thread.ident is not None and not thread.is_alive():
                return f"thread {thread.name} has ended"
        try:
            next(self._board.iterjobs(), None)
        except exceptions.JobFailure as error:
            return str(error)
        return None

    def _repeat(
        self,
        step: Callable[[], float],
        problem: str,
        pause: float,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Call `step` until the service ends, then `release`.

        :param step: returns the seconds until its next call.
        :param problem: what an error of `step` prevents, for the log.
        :param pause: seconds until the next call after an error.
        """
        while True:
            try:
                wait = step()
            except Exception as error:
                LOG.warning("%s: %s", problem, error)
                wait = pause
            if self._ended.wait(wait):
                break
        if release is not None:
            try:
                release()
            except exceptions.StorageFailure as error:
                LOG.debug("claim was not released: %s", error)

    def _report(self) -> float:
        """Report that a conductor has this code and serves these queues.

        Searches for flows without a job may take longer than such a report counts.
        """
        self._versions.report()
        if self._queues is not None:
            self._queues.report(self._served)
        return self.POLL_SECONDS * random.uniform(0.7, 1.3)

    def _post_missing_jobs(self) -> None:
        while True:
            try:
                self._persistence.check_identity()
            except exceptions.StorageFailure:
                self.stop()  # `run` raises the error.
                return
            try:
                if isinstance(self._board, _stored.StoredJobBoard):
                    self._forget_checked_if_changed(self._board)
                self._resume_lost()
                if self._is_board_separate:
                    self._post_unposted()
            except Exception as error:
                LOG.warning("cannot search for flows without a job: %s", error)
                self._identity = None
            # Random, so that several services do not read at the same time.
            if self._ended.wait(self.POLL_SECONDS * random.uniform(0.7, 1.3)):
                return

    def _forget_checked_if_changed(self, board: _stored.StoredJobBoard) -> None:
        identity = board.identify()
        if identity != self._identity:
            self._conductor.adopt_parked()
            self._identity, self._newest, self._seen = identity, None, set()

    def _resume_lost(self) -> None:
        with contextlib.closing(self._persistence.get_connection()) as connection:
            for row in _list_flows(connection, states.FLOW_RUNNING):
                if row.lease is None or _owners.is_dead(row.lease):
                    self._post(connection, row, states.FLOW_RUNNING)
            # Flows that were cancelled while they were suspended, or requested to run again.
            among = _COMMANDED_STATES if self._is_board_separate else _SUSPENDED_STATES
            for page in _list_pages(connection, among, commanded=True):
                # Most of many flows with a command have a job, and only wait for their turn.
                have_jobs = set[str]()
                if page and not self._is_board_separate:
                    assert isinstance(self._board, impl_sql.SQLJobBoard)
                    have_jobs = self._board.with_jobs([row.uuid for row in page])
                for row in page:
                    self._conductor.allow(row.uuid)
                    if row.uuid not in have_jobs:
                        self._post(connection, row, among)

    def _post_unposted(self) -> None:
        """Post a job for each flow that was submitted to this board and has none.

        Each flow is checked once. All are checked again after an error, or if the board may have
        lost jobs.
        """
        is_complete = self._newest is None or time.monotonic() >= self._complete_at
        since = None if is_complete else (self._newest or 0.0) - _OVERLAP_SECONDS
        seen = set[str]()
        with contextlib.closing(self._persistence.get_connection()) as connection:
            for row in _list_flows(connection, _PENDING_STATES, since):
                if row.uuid not in self._seen:
                    self._post(connection, row, _PENDING_STATES)
                seen.add(row.uuid)
                self._newest = max(self._newest or 0.0, row.created or 0.0)
        if is_complete:
            self._seen, self._complete_at = seen, time.monotonic() + _COMPLETE_SECONDS
        else:
            self._seen |= seen

    def _post(self, connection: base.Connection, row: base.FlowRow, among: tuple[str, ...]) -> None:
        """Post the job of a flow in one of these states, unless it belongs to another board."""
        try:
            detail = connection.get_flow_details(row.uuid, lazy=True)
        except exceptions.NotFound:
            return
        except exceptions.CorruptRecord as error:
            if row.uuid not in self._unreadable:
                self._unreadable.add(row.uuid)
                LOG.warning("cannot search for the job of a flow: %s", error)
            return
        if (detail.state or states.PENDING) not in among or detail.meta_value(
            models.FACTORY
        ) is None:
            return
        place = _stored.submitted(detail, self._board)
        if place is None:
            if among is _PENDING_STATES or detail.is_submitted:
                return  # The flow was not submitted, or was submitted to another board.
            place = Place()
        if self._conductor.has_parked(row.uuid):
            return
        book = models.LogBook(row.book_name, row.book_uuid)
        posted = self._reposting.repost(
            row.uuid, row.name, book, place, replaces_trashed=row.command is not None
        )
        if posted is not None:
            LOG.warning(
                *("flow %s (%s) %s", row.name, row.uuid, _EVENTS[among]), extra={"flow": row.uuid}
            )
        elif (
            row.command is not None
            and self._is_board_separate
            and isinstance(self._board, _stored.BaseStoredJobBoard)
        ):
            self._board.make_due(row.uuid)  # A pause of its queue does not hold back commands.


def _list_pages(
    connection: base.Connection,
    among: Collection[str],
    since: float | None = None,
    *,
    commanded: bool = False,
) -> Iterator[Sequence[base.FlowRow]]:
    after = None
    while True:
        page = connection.list_flows(
            states=among, newest_first=False, since=since, after=after, commanded=commanded
        )
        yield page.flows
        after = page.after
        if after is None:
            return


def _list_flows(
    connection: base.Connection, among: Collection[str], since: float | None = None
) -> Iterator[base.FlowRow]:
    return itertools.chain.from_iterable(_list_pages(connection, among, since))
