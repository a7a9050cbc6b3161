"""A conductor that runs flows in an executor."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wbengine import engines, exceptions, states
from wbengine._concurrency import conditions, threads
from wbengine._logs import record_fields
from wbengine._runtime import control
from wbengine._tasks.limit_attributes import Quota
from wbengine.conductors import _code_versions, _limited_flows, base
from wbengine.conductors._outcomes import Action, Error, Outcome, Stage, decide
from wbengine.engines import _allowed, _flow_errors, _ownership
from wbengine.jobs import _parked_jobs, _stored
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.listeners import base as listeners
from wbengine.listeners import logging as logging_listener
from wbengine.operations import _changing
from wbengine.persistence import _history, _leases, _owners, models
from wbengine.persistence import base as persistence_base

__all__ = ["ExecutorConductor"]

LOG: Final = logging.getLogger(__name__)

#: Errors of a factory that may not occur in other processes: this process may have another version
#: of its code, or may not allow it.
_FACTORY_ERRORS: Final = (ImportError, AttributeError, exceptions.NotTrusted)
#: First and longest pause before a job that could not be run is claimed again.
_FIRST_PAUSE_SECONDS: Final = 0.5
_MAX_PAUSE_SECONDS: Final = 30.0
#: Time after the end of its pause for which such a job is remembered.
_REMEMBERED_SECONDS: Final = 600.0
#: Maximum number of such jobs that a search leaves out.
_MAX_LEFT_OUT: Final = 10_000
#: Maximum number of jobs that are claimed at once.
_MAX_TAKEN: Final = 16
#: Interval between two polls of blocked jobs, if there are no others.
_BLOCKED_POLL_SECONDS: Final = 5.0
_BLOCKED_TEXT: Final = "flow of {job} is blocked by code: {error}"


@dataclass(eq=False, slots=True)
class _Claim:
    job: jobs.Job
    #: Time after which it expires unless it is extended.
    seconds: float
    #: On the monotonic clock.
    due: float
    engine: engines.Engine | None = None
    #: True if another conductor may have claimed the job.
    lost: bool = False
    parked: control.Parked | None = None
    #: Name and quota of the limit of the flow, if it had a permit.
    flow_limit: tuple[str, Quota] | None = None

    def suspend(self) -> None:
        engine = self.engine
        if engine is not None:
            try:
                engine.suspend()
            except exceptions.WbengineException as error:
                LOG.warning("cannot suspend the flow of %s: %s", self.job, error)


class ExecutorConductor(base.Conductor):
    """Claims jobs, runs their flows in an executor, and consumes jobs whose flows have ended.

    Result of a job (`_outcomes.decide`):

    - Consumed: the flow has ended in any state, and this is stored. A command or a listener
      suspended it; a request resumes it. It cannot be run, for example because inputs are missing.
    - Abandoned: the conductor stops, or the flow has a command that its run did not carry out.
    - Postponed, which is abandoned, and not claimed here for a while: one of
      `NO_CONSUME_EXCEPTIONS` was raised and the flow has not ended; the module of the factory
      raises an exception, the factory raises ImportError or AttributeError, as in an old
      deployment, or it is not allowed here (`flows`); the flow cannot be run, and an earlier run
      has begun; `sys.exit()` or Ctrl-C interrupts the flow or its factory (in the thread of `run`,
      the interruption is raised). If the broker of the workers is unavailable, the conductor claims
      no job for a short time.
    - Parked: the flow only waits, for a signal, a pause, a permit, or for longer than
      `PARK_SECONDS`. This requires a database of flows, and a job with the uuid of its flow
      (`engines.submit`). From another store, the job moves to that database meanwhile.
    - Blocked: a workflow did not repeat its recorded steps. Each conductor process claims the job
      once, when it finds no others.
    - Trashed: no engine can be created for the flow, and no run has begun.

    A claim expires after the time of the board (`ttl` of etcd), or else after `CLAIM_SECONDS`.
    While the flow runs, the claim is extended at intervals of a third of this time. If the claim is
    lost, the flow is suspended; whether the engine can still write depends on the lease of the
    flow. If the conductor dies, its claims expire, and another conductor claims the jobs and
    resumes the flows.

    Events of the `notifier`: `compilation`, `preparation`, `validation` and `running`, each with
    `_start` and `_end`, with the `job`, the `engine` and the `conductor`; `job_consumed`,
    `job_abandoned` and `job_trashed`, with the `job`, the `conductor` and the `persistence`.

    :param wait_timeout: seconds between two polls of a board without jobs; default: set by the
        board.
    :param log: a logger for events of jobs and flows.
    :param max_simultaneous_jobs: maximum number of claims at a time; 0 or less: no limit.
    :param executor_factory: returns the executor of the flows for one `run`.
    :param versions: which flows this process runs, by versions of their code; default: all.
    :raises ValueError: if `wait_timeout` is not a number above 0, or the factory is not callable.
    """

    LOG: ClassVar[Any] = None
    #: Default of `wait_timeout`; None: set by the board.
    WAIT_TIMEOUT: ClassVar[float | None] = None
    MAX_SIMULTANEOUS_JOBS: ClassVar[int] = -1
    #: Time after which a claim expires unless it is extended or the board sets a time.
    CLAIM_SECONDS: ClassVar[float] = 15.0
    #: A flow is parked if nothing of it runs or is due for this time.
    PARK_SECONDS: ClassVar[float] = 5.0
    #: Exceptions after which a job is abandoned, so that it can be claimed again.
    NO_CONSUME_EXCEPTIONS: ClassVar[tuple[type[Exception], ...]] = (
        exceptions.ExecutionFailure,
        exceptions.StorageFailure,
        exceptions.TransportFailure,
    )
    EVENTS_EMITTED: ClassVar[tuple[str, ...]] = (
        *("compilation_start", "compilation_end", "preparation_start", "preparation_end"),
        *("validation_start", "validation_end", "running_start", "running_end"),
        *("job_consumed", "job_abandoned", "job_trashed"),
    )

    def __init__(
        self,
        name: str,
        jobboard: jobs.JobBoard,
        persistence: persistence_base.Backend | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        wait_timeout: float | None = None,
        log: Any = None,
        max_simultaneous_jobs: int | None = None,
        executor_factory: Callable[[], futures.Executor] | None = None,
        *,
        flows: _allowed.Flows = None,
        versions: _code_versions.CodeVersions | None = None,
    ) -> None:
        super().__init__(name, jobboard, persistence, engine, engine_options, flows=flows)
        self._versions = versions
        pause = self.WAIT_TIMEOUT if wait_timeout is None else wait_timeout
        if pause is not None and (
            isinstance(pause, bool) or not isinstance(pause, int | float) or not pause > 0
        ):
            raise ValueError(f"wait_timeout must be a number of seconds above 0, got {pause!r}")
        if executor_factory is not None and not callable(executor_factory):
            raise ValueError(f"executor_factory must be callable, got {executor_factory!r}")
        self._wait_timeout = pause
        self._log = log or self.LOG or LOG
        self._max_simultaneous_jobs = int(
            self.MAX_SIMULTANEOUS_JOBS if max_simultaneous_jobs is None else max_simultaneous_jobs
        )
        self._custom_factory = executor_factory
        self._stopping = False
        self._registered = self._board_unavailable = False
        # Wakes the thread that claims jobs. A queue, because signal handlers may use it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._dead = conditions.Event()
        # The thread of `run`, and the interruption of a flow in it: Ctrl-C or `sys.exit()`.
        self._thread: int | None = None
        self._interruption: BaseException | None = None
        self._dispatched: set[futures.Future[Action]] = set()
        # By the id of the job object that was claimed.
        self._claims: dict[int, _Claim] = {}
        # Jobs that could not be run, by uuid: end of the pause, and its duration.
        self._postponed: dict[str, tuple[float, float]] = {}
        # Whether the next search prefers jobs that did not fail before.
        self._prefers_untried = True
        # Blocked jobs that this process claimed, by uuid, with their `StoredJob.block_number`; and
        # blocked jobs that it will claim when there are no others.
        self._blocked: dict[str, float] = {}
        self._untried: deque[jobs.Job] = deque()
        # Blocked jobs that another conductor had claimed when this one was about to.
        self._contended: list[jobs.Job] = []
        self._next_blocked_poll = 0.0
        # No job is claimed before this time, because the broker of the workers was unavailable.
        self._idle_until = 0.0
        # The board, if it can contain the jobs of parked flows. If it is elsewhere, these jobs.
        self._parking_board: impl_sql.SQLJobBoard | None = None
        self._parked_jobs = _parked_jobs.ParkedJobs.of(jobboard, persistence)
        self._limited: _limited_flows.LimitedFlows | None = None
        store = persistence if self._parked_jobs is not None else None
        if isinstance(jobboard, impl_sql.SQLJobBoard) and jobboard.keeps_flows:
            self._parking_board, store = jobboard, jobboard.persistence
        if store is not None:
            place = self._engine_options.get("limits") or persistence or store
            self._limited = _limited_flows.LimitedFlows(self._board_of_parked, store, place)

    def _board_of_parked(self) -> impl_sql.SQLJobBoard:
        """Return the board with the jobs of parked flows.

        :raises JobFailure: if it cannot be connected.
        """
        if self._parked_jobs is not None:
            return self._parked_jobs.board
        assert self._parking_board is not None
        return self._parking_board

    def _executor_factory(self) -> futures.Executor:
        if self._custom_factory is None:
            raise exceptions.NotImplementedError(f"{type(self).__name__} requires executor_factory")
        return self._custom_factory()

    @property
    def running_engines(self) -> list[engines.Engine]:
        """The engines of the flows that run now."""
        return [claim.engine for claim in tuple(self._claims.values()) if claim.engine is not None]

    @property
    def dispatching(self) -> bool:
        """Whether the conductor still claims jobs or runs flows."""
        return not self._dead.is_set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.put(None)
        self._suspend_all()

    def wait(self, timeout: float | None = None) -> bool:
        return self._dead.wait(timeout)

    def run(self, max_dispatches: int | None = None) -> None:
        self._dead.clear()
        self._registered = False
        self._thread, self._interruption = threading.get_ident(), None
        ended = conditions.Event()
        keeper = threads.Thread(
            target=self._extend_claims, args=(ended,), name="wbengine-claims", daemon=True
        )
        keeper.start()
        try:
            wake = functools.partial(self._wake.put, None)
            limits = (
                contextlib.nullcontext() if self._limited is None else self._limited.waking(wake)
            )
            with limits, self._waking(wake) as poll_seconds, self._executor_factory() as executor:
                pause = poll_seconds if self._wait_timeout is None else self._wait_timeout
                try:
                    self._dispatch(
                        executor, -1 if max_dispatches is None else max_dispatches, pause
                    )
                # At its end, the `with` block waits for flows in other threads.
                except BaseException:
                    self.stop()
                    raise
        finally:
            ended.set()
            keeper.join()
            # Claims that no thread of the executor handles.
            for claim in tuple(self._claims.values()):
                self._finish_claim(claim.job, Action.ABANDON)
            self._dead.set()

    @contextlib.contextmanager
    def _waking(self, wake: Callable[[], None]) -> Iterator[float]:
        """Call `wake` during the block when jobs may be due; yield the interval between polls."""
        with self._jobboard.waking(wake) as seconds, contextlib.ExitStack() as stack:
            if self._parked_jobs is not None and self._jobboard.connected:
                seconds = min(seconds, stack.enter_context(self._parked_jobs.waking(wake)))
            yield seconds

    def _dispatch(self, executor: futures.Executor, remaining: int, pause: float) -> None:
        """Claim and start jobs until `stop`, at most `remaining` of them (-1: no limit).

        :param pause: interval between two polls in seconds.
        :raises BaseException: if it interrupted a flow in this thread.
        """
        while remaining != 0 and not self._stopping:
            if self._limited is not None:
                self._offer_permits(self._limited.offer_free)
            self._post_parked()
            limit = self._free_places()
            started = self._start_jobs(executor, limit if remaining < 0 else min(limit, remaining))
            if remaining > 0:
                remaining -= started
            if not started:
                self._sleep(pause)
            if self._interruption is not None:
                raise self._interruption

    def _free_places(self) -> int:
        if self._max_simultaneous_jobs <= 0:
            return _MAX_TAKEN
        return min(_MAX_TAKEN, self._max_simultaneous_jobs - len(self._dispatched))

    def _start_jobs(self, executor: futures.Executor, limit: int) -> int:
        """Claim and start up to `limit` jobs. Return their number."""
        if limit <= 0 or time.monotonic() < self._idle_until:
            return 0
        try:
            self.connect()
            if not self._registered:
                self._jobboard.register_entity(self.conductor)
                self._registered = True
            taken = self._take(limit)
        except exceptions.JobFailure as error:
            if not self._board_unavailable:
                self._log.warning("%s; retrying until the job board answers", error)
            self._board_unavailable = True
            return 0
        if self._board_unavailable:
            self._board_unavailable = False
            self._log.info("job board %s answers again", self._jobboard.name)
        for job in taken:
            future = executor.submit(self._dispatch_job, job)
            self._dispatched.add(future)
            future.add_done_callback(functools.partial(self._on_job_done, job))
        return len(taken)

    def _take(self, limit: int) -> list[jobs.Job]:
        if self._limited is not None:
            self._offer_permits(self._limited.poll)
        # Without `expiry`, which would override the time of the board.
        with jobs.claims_expiring_after(self.CLAIM_SECONDS):
            taken = self._take_due(limit)
        for job in taken:
            self._note_claim(job)
        if taken:
            return taken
        self._poll_blocked_jobs()
        while self._untried:
            is_claimed = self._claim(self._untried[0])  # If the board fails, the job stays.
            job = self._untried.popleft()
            if is_claimed:
                return [job]
        return []

    def _take_due(self, limit: int) -> list[jobs.Job]:
        """Claim jobs that are not postponed.

        Every second call prefers jobs that did not fail before. Otherwise, if the first jobs of a
        queue are many that only another release can load, those behind them would never run.
        """
        now, postponed = time.monotonic(), tuple(self._postponed.items())[-_MAX_LEFT_OUT:]
        paused = [uuid for uuid, (until, _) in postponed if until > now]
        taken: Sequence[jobs.Job] = ()
        if len(paused) < len(postponed):
            if self._prefers_untried:
                failed = [uuid for uuid, _ in postponed]
                taken = self._jobboard.take(self._name, limit, failed)
            self._prefers_untried = not self._prefers_untried
        return list(taken or self._jobboard.take(self._name, limit, paused))

    def _post_parked(self) -> None:
        """Post the jobs of flows whose wait has ended, if their board is elsewhere."""
        if self._parked_jobs is not None and self._jobboard.connected:
            try:
                self._parked_jobs.post_due(self._name)
            except (exceptions.JobFailure, exceptions.StorageFailure) as error:
                self._log.warning("cannot continue parked flows: %s", error)

    def _offer_permits(self, offer: Callable[..., None], *limit: Any) -> None:
        """Let flows run that waited for permits."""
        try:
            offer(*limit)
        except (exceptions.JobFailure, exceptions.StorageFailure) as error:
            self._log.warning("cannot start flows that wait for their limits: %s", error)

    def _claim(self, job: jobs.Job) -> bool:
        try:
            with jobs.claims_expiring_after(self.CLAIM_SECONDS):
                self._jobboard.claim(job, self._name)
        except exceptions.UnclaimableJob:
            if self._parking_board is None:  # Otherwise the board lists it again.
                self._contended.append(job)
            return False
        except exceptions.NotFound:
            return False
        self._note_claim(job)
        return True

    def _note_claim(self, job: jobs.Job) -> None:
        self._log.debug("claimed %s", job)
        seconds = job.claim_seconds or self.CLAIM_SECONDS
        self._claims[id(job)] = _Claim(job, seconds, time.monotonic() + seconds / 3)

    def _poll_blocked_jobs(self) -> None:
        board = self._parking_board
        if self._untried or time.monotonic() < self._next_blocked_poll:
            return
        if board is None:
            self._untried.extend(self._contended)
            self._contended.clear()
            self._next_blocked_poll = time.monotonic() + _BLOCKED_POLL_SECONDS
            return
        blocked_jobs = board.blocked_jobs()
        self._untried.extend(
            job for job in blocked_jobs if self._blocked.get(job.uuid) != job.block_number
        )
        self._blocked = {
            job.uuid: self._blocked[job.uuid] for job in blocked_jobs if job.uuid in self._blocked
        }
        self._next_blocked_poll = time.monotonic() + _BLOCKED_POLL_SECONDS

    def _sleep(self, seconds: float) -> None:
        """Wait until a flow has ended, the board wakes this, `stop` is called, or time is over."""
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=seconds)
            while True:  # One poll answers all notifications.
                self._wake.get_nowait()

    def _listeners_from_job(
        self, job: jobs.Job, engine: engines.Engine
    ) -> list[listeners.Listener]:
        inherited = super()._listeners_from_job(job, engine)
        return [*inherited, logging_listener.LoggingListener(engine, log=self._log)]

    def _dispatch_job(self, job: jobs.Job) -> Action:
        """Run the flow of a claimed job. Return what happens to the job."""
        details = job.details
        uuid = details.get("flow_uuid") if isinstance(details, Mapping) else None
        try:
            with record_fields.adding_flow(uuid or job.uuid):
                return self._run_flow(job)
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            # A thread of the executor must continue with other flows. `run` re-raises the error.
            if threading.get_ident() == self._thread:
                self._interruption = error
            outcome = Outcome(Stage.CLAIMED, Error.INTERRUPTED)
            return self._decide(
                job, outcome, error, "flow of {job} was interrupted by {error!r}; job abandoned"
            )

    def _run_flow(self, job: jobs.Job) -> Action:
        claim = self._claims[id(job)]
        if claim.lost or self._stopping:
            return decide(Outcome(Stage.CLAIMED, Error.SKIPPED))
        try:
            engine = self._engine_from_job(job)
        except _OtherCodeError as error:
            self._log.info("%s is left to other conductors: %s", job, error)
            self._refuse_codes(job, error)
            was_blocked = isinstance(job, _stored.StoredJob) and job.block_number is not None
            return decide(Outcome(Stage.CLAIMED, Error.OTHER_CODE, is_blocked=was_blocked))
        except Exception as error:
            if _flow_errors.is_undecodable(error) and self._store_block(job, error):
                outcome = Outcome(Stage.CLAIMED, Error.OTHER_CODE, is_blocked=True)
                return self._decide(job, outcome, error, _BLOCKED_TEXT)
            is_temporary = isinstance(error, (*self.NO_CONSUME_EXCEPTIONS, *_FACTORY_ERRORS))
            outcome = Outcome(
                Stage.CLAIMED,
                Error.TEMPORARY if is_temporary else Error.OTHER,
                was_in_progress=not is_temporary and self._is_in_progress(job),
            )
            text = "cannot run {job}; job trashed"
            if decide(outcome) is not Action.TRASH:
                text = "cannot create an engine for {job} yet: {error}"
            return self._decide(job, outcome, error, text)
        is_blocked = engine.storage.flow_detail.is_blocked
        if is_blocked and self._parking_board is None and job.uuid not in self._blocked:
            # A board in another store lists it before other jobs.
            self._postpone_blocked(job)
            self._untried.append(job)
            return decide(Outcome(Stage.LOADED, Error.SKIPPED))
        stage = Stage.LOADED
        try:
            with contextlib.ExitStack() as stack:
                for listener in self._listeners_from_job(job, engine):
                    stack.enter_context(listener)
                claim.engine = engine
                engine.suspends_on_difference = True
                if self._versions is not None:
                    engine.storage.code = self._versions.code_of(engine.storage.flow_detail)
                can_park = self._parking_board is not None or self._parked_jobs is not None
                if can_park and job.uuid == engine.storage.flow_uuid:
                    engine.park_after = self.PARK_SECONDS
                if claim.lost or self._stopping:
                    return decide(Outcome(stage, Error.SKIPPED))
                # The engine of an earlier claim may still run the flow or may have ended it. If a
                # job has the uuid of its flow, other engines may run the flow too.
                if job.claims > 1 or job.uuid == engine.storage.flow_uuid:
                    self._check_not_owned(engine)
                    engine.check_state = _check_not_ended
                    engine.keeps_suspended = True
                self._stage("compilation", engine.compile, job, engine)
                self._stage("preparation", engine.prepare, job, engine)
                stage = Stage.PREPARED
                self._stage("validation", engine.validate, job, engine)
                stage = Stage.RUNNING
                self._stage("running", engine.run, job, engine)
        except Exception as error:
            return self._decide_after_error(job, engine, stage, error)
        finally:
            claim.engine = None
            claim.flow_limit = engine.flow_limit
        state = engine.storage.get_flow_state()
        self._log.info("flow of %s ended in %s", job, state)
        is_suspended = state == states.SUSPENDED
        claim.parked = engine.parked if is_suspended else None
        is_by_command = engine.storage.flow_detail.is_suspended_by_command
        is_handed_over = (claim.lost or self._stopping) and not is_by_command
        return decide(
            Outcome(
                stage,
                has_ended=state in states.FLOW_ENDED,
                has_command=is_suspended and not is_handed_over and self._has_command(engine),
                is_parked=claim.parked is not None,
                is_suspended=is_suspended,
                is_handed_over=is_handed_over,
            )
        )

    def _decide_after_error(
        self, job: jobs.Job, engine: engines.Engine, stage: Stage, error: Exception
    ) -> Action:
        if isinstance(error, _ownership.StateRefused):
            self._log.info("%s is not run: %s", job, error)
            return decide(Outcome(stage, Error.REFUSED, has_command=self._has_command(engine)))
        detail = engine.storage.flow_detail
        # Before the preparation, a stored final state belongs to an earlier job.
        has_ended = stage >= Stage.PREPARED and self._has_ended(engine)
        outcome = Outcome(
            stage,
            Error.TEMPORARY if self._is_transient(error) else Error.OTHER,
            has_ended=has_ended,
            has_command=not has_ended and self._has_command(engine),
            was_in_progress=stage < Stage.RUNNING and self._is_in_progress(job),
            is_blocked=detail.is_blocked,
        )
        cancelled = has_ended and detail.is_cancelled
        if isinstance(error, exceptions.FlowBusy):
            level, text = logging.INFO, "{job} is postponed: {error}"
        elif cancelled and engine.storage.get_flow_state() == states.REVERTED:
            level, text = logging.INFO, "flow of {job} was cancelled; job {action}: {error}"
        else:
            level, text = logging.WARNING, "flow of {job} failed; job {action}"
        if decide(outcome) is Action.BLOCK:
            text = _BLOCKED_TEXT
        return self._decide(job, outcome, error, text, level)

    def _store_block(self, job: jobs.Job, error: Exception) -> bool:
        """Suspend a flow whose values this code cannot decode. Return whether it is blocked.

        It is not if it has ended, another process runs it, or its record cannot be changed.
        """
        uuid = job.details.get("flow_uuid") if isinstance(job.details, Mapping) else None
        if uuid is None or self._persistence is None:
            return False
        try:
            with _changing.changing(self._persistence, uuid) as detail:
                if detail.state in states.FLOW_ENDED:
                    return False
                detail.meta[models.BLOCKED] = _flow_errors.difference_of(error, None)
                if not detail.is_blocked:
                    detail.enter(states.SUSPENDED, time.time(), _history.BLOCKED)
        except exceptions.WbengineException as problem:
            self._log.warning("cannot block %s: %s", job, problem)
            return False
        return True

    def _decide(
        self,
        job: jobs.Job,
        outcome: Outcome,
        error: BaseException,
        text: str,
        level: int = logging.WARNING,
    ) -> Action:
        """Decide after an error, and log it.

        :param text: format of the message with the `job`, the `error` and the `action`.
        """
        action = decide(outcome)
        was_run = level == logging.WARNING and outcome.stage > Stage.CLAIMED
        has_trace = action is Action.TRASH or (was_run and action is not Action.BLOCK)
        word = Action.ABANDON.value if action is Action.POSTPONE else action.value
        message = text.format(job=job, error=error, action=word)
        self._log.log(level, "%s", message, exc_info=has_trace)
        if action is Action.POSTPONE:
            self._postpone(job, error)
        return action

    def _flow_detail_from_job(self, job: jobs.Job) -> models.FlowDetail:
        detail = super()._flow_detail_from_job(job)
        if self._versions is not None and not self._versions.accepts(detail):
            raise _OtherCodeError(f"its flow requires code {detail.code}")
        return detail

    def _refuse_codes(self, job: jobs.Job, error: _OtherCodeError) -> None:
        assert self._versions is not None
        if self._parking_board is None:
            self._postpone(job, error)
        else:
            self._parking_board.refused_codes = self._versions.refused

    def _stage(
        self, name: str, work: Callable[[], object], job: jobs.Job, engine: engines.Engine
    ) -> None:
        details = {"job": job, "engine": engine, "conductor": self}
        self._notifier.notify(f"{name}_start", details)
        work()
        self._notifier.notify(f"{name}_end", details)

    def _is_transient(self, error: Exception) -> bool:
        if isinstance(error, exceptions.WrappedFailure):
            return all(failure.check(*self.NO_CONSUME_EXCEPTIONS) for failure in error)
        return isinstance(error, self.NO_CONSUME_EXCEPTIONS)

    def _is_in_progress(self, job: jobs.Job) -> bool:
        """Return whether a run of the flow has begun before and it has not ended, as far as known.

        Other code has run this flow, so its job is left to conductors with that code.
        """
        uuid = job.details.get("flow_uuid") if isinstance(job.details, Mapping) else None
        if uuid is None or self._persistence is None:
            return False
        try:
            with contextlib.closing(self._persistence.get_connection()) as connection:
                state = connection.get_flow_details(uuid, lazy=True).state
                is_requested = bool(connection.commands([uuid]))
        except exceptions.NotFound:
            return False
        except exceptions.StorageFailure:
            return True
        return is_requested or state not in {None, states.PENDING, *states.FLOW_ENDED}

    def _has_command(self, engine: engines.Engine) -> bool:
        """Return whether a command is left to the next engine of the flow, as far as known."""
        storage = engine.storage
        if storage.backend is None:
            return False
        try:
            with contextlib.closing(storage.backend.get_connection()) as connection:
                return bool(connection.commands([storage.flow_uuid]))
        except exceptions.StorageFailure:
            return True

    def _check_not_owned(self, engine: engines.Engine) -> None:
        """Check that no other engine runs the flow.

        :raises FlowBusy: if another engine owns it.
        """
        storage = engine.storage
        if storage.backend is not None:
            with contextlib.closing(storage.backend.get_connection()) as connection:
                lease = connection.get_lease(storage.flow_uuid)
            if lease is not None and not _owners.is_dead(lease.owner):
                raise _leases.busy_error(lease, _leases.LEASE_SECONDS)

    def _has_ended(self, engine: engines.Engine) -> bool:
        storage = engine.storage
        if storage.backend is None:
            return storage.get_flow_state() in states.FLOW_ENDED
        try:
            with contextlib.closing(storage.backend.get_connection()) as connection:
                return (
                    connection.get_flow_details(storage.flow_uuid, lazy=True).state
                    in states.FLOW_ENDED
                )
        except (exceptions.StorageFailure, exceptions.NotFound):
            return False

    def _on_job_done(self, job: jobs.Job, fut: futures.Future[Action]) -> None:
        action = Action.ABANDON
        try:
            action = fut.result()
        except BaseException as error:  # Otherwise the exception would end the thread.
            action = Action.TRASH if isinstance(error, Exception) else Action.ABANDON
            self._log.warning("cannot run %s; job %s", job, action.value, exc_info=True)
        try:
            self._finish_claim(job, action)
        finally:
            self._dispatched.discard(fut)
            self._wake.put(None)

    def _finish_claim(self, job: jobs.Job, action: Action) -> None:
        claim = self._claims.pop(id(job), None)
        parked = None if claim is None else claim.parked
        if action is Action.PARK and parked is not None:
            self._park(job, parked)
        elif action is Action.BLOCK:
            self._block(job)
        else:
            self._try_finish_job(job, action)
        if claim is not None and claim.flow_limit is not None and self._limited is not None:
            self._offer_permits(self._limited.offer, *claim.flow_limit)

    def _block(self, job: jobs.Job) -> None:
        board = self._parking_board
        is_of_flow = job.details.get("flow_uuid") == job.uuid
        if board is None or not isinstance(job, _stored.StoredJob) or not is_of_flow:
            self._postpone_blocked(job)
            self._try_finish_job(job, Action.ABANDON)
            return
        try:
            self._blocked[job.uuid] = board.block(job, self._name)
        except exceptions.WbengineException as error:
            self._log.warning("cannot block %s: %s", job, error)
            return
        self._notify_abandoned(job)

    def _postpone_blocked(self, job: jobs.Job) -> None:
        """Do not claim the job again before `allow`, on a board that cannot block it."""
        self._blocked[job.uuid] = 0.0
        self._postponed[job.uuid] = (math.inf, 0.0)

    def has_parked(self, flow_uuid: str) -> bool:
        """Return whether the job of a flow left the board when the flow was parked.

        :raises JobFailure: if the database cannot be read.
        """
        return self._parked_jobs is not None and self._parked_jobs.has(flow_uuid)

    def adopt_parked(self) -> None:
        """Find parked jobs that left the board when it had another id, or another address."""
        if self._parked_jobs is not None:
            self._parked_jobs.adopt()

    def allow(self, flow_uuid: str) -> None:
        """Claim the job of a blocked flow again, although this process ran it."""
        if self._postponed.get(flow_uuid, (0.0, 0.0))[0] == math.inf:
            del self._postponed[flow_uuid]

    def _park(self, job: jobs.Job, parked: control.Parked) -> None:
        elsewhere = self._parked_jobs
        try:
            is_parked = self._board_of_parked().park(
                job,
                self._name,
                parked.seconds,
                parked.signals,
                parked.pauses,
                parked.limit,
                parked.has_begun,
                parked.ends,
                parked.end_delay,
            )
            if elsewhere is not None:
                elsewhere.leave(job, self._name, is_parked)
        except exceptions.WbengineException as error:
            self._log.warning("cannot park %s: %s", job, error)
            if elsewhere is not None:  # Not all boards end the claim of a live process.
                self._try_finish_job(job, Action.ABANDON)
            return
        self._notify_abandoned(job)

    def _notify_abandoned(self, job: jobs.Job) -> None:
        details = {"job": job, "conductor": self, "persistence": self._persistence}
        self._notifier.notify("job_abandoned", details)

    def _try_finish_job(self, job: jobs.Job, action: Action) -> None:
        board = self._jobboard
        finish, event = {
            Action.CONSUME: (board.consume, "job_consumed"),
            Action.TRASH: (board.trash, "job_trashed"),
        }.get(action, (board.abandon, "job_abandoned"))
        details = {"job": job, "conductor": self, "persistence": self._persistence}
        try:
            finish(job, self._name)
        except (exceptions.JobFailure, exceptions.NotFound) as error:
            # The claim expires; the next claim finds the stored result of the flow.
            self._log.warning("cannot finish %s: %s", job, error)
            return
        if action in (Action.CONSUME, Action.TRASH):
            self._postponed.pop(job.uuid, None)
        self._notifier.notify(event, details)

    def _postpone(self, job: jobs.Job, error: BaseException) -> None:
        """Do not claim a job for a while, so that other jobs run first.

        The pause grows with each failure. If the flow is busy, it does not grow, because the flow
        becomes free when its lease expires.
        """
        now = time.monotonic()
        _, last_pause = self._postponed.pop(job.uuid, (0.0, 0.0))
        if isinstance(error, exceptions.FlowBusy):
            last_pause = 0.0
        if isinstance(error, exceptions.TransportFailure):  # Other jobs would fail too.
            self._idle_until = now + _FIRST_PAUSE_SECONDS
        pause = min(max(2 * last_pause, _FIRST_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)
        # Other conductors may have removed the jobs of old entries.
        for uuid, (until, _) in tuple(self._postponed.items()):
            if until + _REMEMBERED_SECONDS < now:
                self._postponed.pop(uuid, None)
        self._postponed[job.uuid] = (now + pause, pause)

    def _extend_claims(self, ended: conditions.Event) -> None:
        while not ended.wait(min(self.CLAIM_SECONDS / 12, 0.5)):
            now = time.monotonic()
            for claim in tuple(self._claims.values()):
                if self._stopping or claim.lost:
                    claim.suspend()  # Repeated, because it has no effect before the flow runs.
                if claim.due <= now and not claim.lost:
                    claim.due = now + claim.seconds / 3
                    self._extend(claim)

    def _extend(self, claim: _Claim) -> None:
        try:
            extended = claim.job.extend_expiry(claim.seconds)
        except Exception as error:
            self._log.warning("cannot extend the claim on %s: %s", claim.job, error)
            return
        if not extended and id(claim.job) in self._claims:
            claim.lost = True
            claim.suspend()
            self._log.warning("lost the claim on %s; its flow is suspended", claim.job)

    def _suspend_all(self) -> None:
        for claim in tuple(self._claims.values()):
            claim.suspend()


class _OtherCodeError(Exception):
    """The flow requires other code than that of this process."""


def _check_not_ended(state: str) -> None:
    if state in states.FLOW_ENDED:
        raise _ownership.StateRefused(f"its flow has already ended in {state}")
