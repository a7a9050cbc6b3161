"""A conductor whose flows run in an executor."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wbengine import engines, exceptions, states
from wbengine.conductors import base
from wbengine.engines import allowed
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.listeners import base as listeners
from wbengine.listeners import logging as logging_listener
from wbengine.persistence import base as persistence_base
from wbengine.persistence import leases, owners
from wbengine.runtime import control

__all__ = ["ExecutorConductor"]

LOG: Final = logging.getLogger(__name__)

#: What makes a flow fails with these where its code is of another version, or is not allowed here;
#: others may have it.
_ELSEWHERE: Final = (ImportError, AttributeError, exceptions.NotTrusted)
#: For so many seconds a job that could not be run is left alone, at first and at most.
_SHORTEST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


@dataclass(eq=False, slots=True)
class _Claim:
    """A claim that this conductor holds; `due`: when it is to be extended."""

    job: jobs.Job
    due: float
    #: While the flow runs.
    engine: engines.Engine | None = None
    #: Another may have claimed the job.
    lost: bool = False
    #: Its flow was suspended because it waits.
    parked: control.Parked | None = None

    def suspend(self) -> None:
        """Suspend its flow, if that runs."""
        engine = self.engine
        if engine is not None:
            try:
                engine.suspend()
            except exceptions.WbengineException as error:
                LOG.warning("The flow of %s could not be suspended: %s", self.job, error)


class ExecutorConductor(base.Conductor):
    """Claims jobs, runs their flows in an executor, and consumes them when these have ended.

    What becomes of a job:

    - its flow has ended, well or not, and that is stored: it is consumed.  A flow that had ended
      when its job was claimed once more is not run again;
    - a command (`wbengine flow suspend`) or a listener suspended the flow: it is consumed, and the
      flow stays as it is until it is resumed by its uuid;
    - `stop` suspended the flow, or what failed is one of `NO_CONSUME_EXCEPTIONS` and did not end
      the flow: it is abandoned.  Where it failed, this conductor leaves it alone for a while, and
      claims no other for a moment if the broker of its workers cannot be reached;
    - nothing of the flow runs, and everything in it waits, for a signal or for longer than
      `PARK_SECONDS`: it is suspended, and the job abandoned until that has come.  So it is with a
      job that is in the database of the flows, and has the uuid of its flow (`engines.submit`);
    - the flow cannot be run (its inputs are missing, say): it is consumed;
    - `sys.exit()` or Ctrl-C interrupts the flow, or what makes it: it is abandoned, and left alone
      for a while.  In the thread of `run`, that raises the interruption;
    - what makes the flow raises ImportError or AttributeError, as in an old deployment, or is not
      allowed here (`flows`): likewise;
    - no engine can be made for it: it is trashed.

    A claim lasts `CLAIM_SECONDS`, and is extended each third of that while the flow runs.  One that
    is lost suspends the flow: what this engine writes meanwhile the lease of the flow decides.  One
    that ends because its conductor died lets another one claim the job, and resume the flow.

    Events of the `notifier`: `compilation`, `preparation`, `validation` and `running`, each with
    `_start` and `_end`, with the `job`, the `engine` and the `conductor`; `job_consumed`,
    `job_abandoned` and `job_trashed`, with the `job`, the `conductor` and the `persistence`.

    :param wait_timeout: seconds between two looks at a board on which there was nothing to do
        (default: what the board says, some tens of milliseconds).
    :param log: a logger, for what happens to jobs and flows.
    :param max_simultaneous_jobs: how many jobs are claimed at a time; 0 or less: without limit.
    :param executor_factory: makes the executor that flows run in, for the length of a `run`.
    :raises ValueError: `wait_timeout` is no number above 0, or the factory cannot be called.
    """

    LOG: ClassVar[Any] = None
    #: Seconds between two looks at a board, unless `wait_timeout` is given; None: the board says.
    WAIT_TIMEOUT: ClassVar[float | None] = None
    #: How many jobs are claimed at a time, unless it is given; without limit.
    MAX_SIMULTANEOUS_JOBS: ClassVar[int] = -1
    #: Seconds after which a claim that is not extended ends.
    CLAIM_SECONDS: ClassVar[float] = 15.0
    #: A flow in which nothing runs, and nothing is due for so many seconds, is suspended meanwhile.
    PARK_SECONDS: ClassVar[float] = 5.0
    #: Failures after which a job is left for another try.
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
        flows: allowed.Flows = None,
    ) -> None:
        super().__init__(name, jobboard, persistence, engine, engine_options, flows=flows)
        pause = self.WAIT_TIMEOUT if wait_timeout is None else wait_timeout
        pause = jobboard.LOOK_SECONDS if pause is None else pause
        if isinstance(pause, bool) or not isinstance(pause, int | float) or not pause > 0:
            raise ValueError(f"wait_timeout is a number of seconds above 0, not {pause!r}")
        if executor_factory is not None and not callable(executor_factory):
            raise ValueError(f"executor_factory must be callable, not {executor_factory!r}")
        self._pause = float(pause)
        self._log = log or self.LOG or LOG
        self._max_simultaneous_jobs = int(
            self.MAX_SIMULTANEOUS_JOBS if max_simultaneous_jobs is None else max_simultaneous_jobs
        )
        self._given_factory = executor_factory
        self._stopping = False
        # The board has been told who works on it; it failed when it was asked last.
        self._registered = self._board_away = False
        # Wakes the thread that claims jobs; handlers of signals may write to it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._dead = threading.Event()
        # The thread of `run`, and what interrupted a flow in it: Ctrl-C, or `sys.exit()`.
        self._thread: int | None = None
        self._interruption: BaseException | None = None
        self._dispatched: set[futures.Future[bool]] = set()
        # The jobs that are claimed, by the id of the object that claimed them.
        self._claims: dict[int, _Claim] = {}
        # Until when jobs that could not be run are left alone, and for how long, by uuid.
        self._postponed: dict[str, tuple[float, float]] = {}
        # Until when no job is claimed: the broker of the workers was away.
        self._idle_until = 0.0
        # The board, if jobs can wait there until their flows can go on.
        self._parking: impl_sql.SQLJobBoard | None = None
        if isinstance(jobboard, impl_sql.SQLJobBoard) and jobboard.keeps_flows:
            self._parking = jobboard

    def _executor_factory(self) -> futures.Executor:
        """The executor for one `run`."""
        if self._given_factory is None:
            raise exceptions.NotImplementedError(
                f"{type(self).__name__} needs executor_factory=, which makes its executor"
            )
        return self._given_factory()

    @property
    def dispatching(self) -> bool:
        """Whether jobs are still claimed, or flows still run."""
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
        ended = threading.Event()
        keeper = threading.Thread(
            target=self._keep_claims, args=(ended,), name="wbengine-claims", daemon=True
        )
        keeper.start()
        try:
            waking = self._jobboard.waking(functools.partial(self._wake.put, None))
            with waking, self._executor_factory() as executor:
                try:
                    self._dispatch(executor, -1 if max_dispatches is None else max_dispatches)
                except BaseException:  # the end of the block waits for flows of other threads
                    self.stop()
                    raise
        finally:
            ended.set()
            keeper.join()
            for claim in tuple(self._claims.values()):  # that none of the executor's threads has
                self._finish_claim(claim.job, False)
            self._dead.set()

    # -- claiming -------------------------------------------------------------------------------

    def _dispatch(self, executor: futures.Executor, left: int) -> None:
        """Claim jobs and have them run, `left` of them (-1: without limit), until `stop`.

        :raises BaseException: what interrupted a flow that ran in this very thread.
        """
        while left != 0 and not self._stopping:
            if self._dispatch_next(executor):
                left -= 1
            else:
                self._sleep()
            if self._interruption is not None:
                raise self._interruption

    def _dispatch_next(self, executor: futures.Executor) -> bool:
        """Claim a job and have it run; False: there is none, or no room for it."""
        if 0 < self._max_simultaneous_jobs <= len(self._dispatched):
            return False
        if time.monotonic() < self._idle_until:
            return False
        try:
            self.connect()
            if not self._registered:
                self._jobboard.register_entity(self.conductor)
                self._registered = True
            job = self._claim_next()
        except exceptions.JobFailure as error:
            if not self._board_away:
                self._log.warning("%s; it is asked until it answers", error)
            self._board_away = True
            return False
        if self._board_away:
            self._board_away = False
            self._log.info("The job board %s is back", self._jobboard.name)
        if job is None:
            return False
        future = executor.submit(self._dispatch_job, job)
        self._dispatched.add(future)
        future.add_done_callback(functools.partial(self._on_job_done, job))
        return True

    def _claim_next(self) -> jobs.Job | None:
        """The most urgent job that nobody has claimed, claimed."""
        for job in self._jobboard.iterjobs(only_unclaimed=True):
            until, _ = self._postponed.get(job.uuid, (0.0, 0.0))
            if time.monotonic() < until:
                continue
            try:
                self._jobboard.claim(job, self._name, expiry=self.CLAIM_SECONDS)
            except (exceptions.UnclaimableJob, exceptions.NotFound):
                continue  # another one was faster
            self._log.debug("Claimed %s", job)
            self._claims[id(job)] = _Claim(job, time.monotonic() + self.CLAIM_SECONDS / 3)
            return job
        return None

    def _sleep(self) -> None:
        """Wait until a flow has ended or `stop` was called, or for a while."""
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=self._pause)
            while True:  # one look is the answer to all
                self._wake.get_nowait()

    # -- running --------------------------------------------------------------------------------

    def _listeners_from_job(
        self, job: jobs.Job, engine: engines.Engine
    ) -> list[listeners.Listener]:
        found = super()._listeners_from_job(job, engine)
        return [*found, logging_listener.LoggingListener(engine, log=self._log)]

    def _dispatch_job(self, job: jobs.Job) -> bool:
        """Run the flow of a claimed job; whether the job is to be consumed, else abandoned."""
        try:
            return self._run_flow(job)
        except BaseException as error:
            if isinstance(error, Exception):
                raise
            # The thread of an executor has other flows to run; that of `run` may be the operator's.
            self._log.warning("Flow of %s was interrupted by %r; the job is abandoned", job, error)
            self._postpone(job, error)
            if threading.get_ident() == self._thread:
                self._interruption = error
            return False

    def _run_flow(self, job: jobs.Job) -> bool:
        """What `_dispatch_job` does."""
        claim = self._claims[id(job)]
        if claim.lost or self._stopping:
            return False
        prepared = False
        later: tuple[type[Exception], ...] = (*self.NO_CONSUME_EXCEPTIONS, *_ELSEWHERE)
        try:
            engine = self._engine_from_job(job)
        except later as error:
            self._log.warning("No engine for %s could be made yet: %s", job, error)
            self._postpone(job, error)
            return False
        try:
            with contextlib.ExitStack() as stack:
                for listener in self._listeners_from_job(job, engine):
                    stack.enter_context(listener)
                claim.engine = engine
                if self._parking is not None and job.uuid == engine.storage.flow_uuid:
                    engine.park_after = self.PARK_SECONDS
                if claim.lost or self._stopping:
                    return False
                # The claim of before ended: its engine may run yet, or have ended the flow.  A job
                # with the uuid of its flow is about one run only, whoever ends it.
                if job.claims > 1 or job.uuid == engine.storage.flow_uuid:
                    self._check_free(engine)
                    if self._has_ended(engine):
                        return True
                self._end_if_cancelled(engine)
                self._stage("compilation", engine.compile, job, engine)
                self._stage("preparation", engine.prepare, job, engine)
                prepared = True
                self._stage("validation", engine.validate, job, engine)
                self._stage("running", engine.run, job, engine)
        except Exception as error:
            # Before it was prepared, the end that is stored is that of an earlier job.
            ended = prepared and self._has_ended(engine)
            consume = ended or not self._is_transient(error)
            what = "consumed" if consume else "abandoned"
            if isinstance(error, exceptions.FlowBusy):
                self._log.info("%s is left alone for a while: %s", job, error)
            else:
                self._log.warning("Flow of %s failed; the job is %s", job, what, exc_info=True)
            if not consume:
                self._postpone(job, error)
            return consume
        finally:
            claim.engine = None
        state = engine.storage.get_flow_state()
        self._log.info("Flow of %s has come to %s", job, state)
        if state == states.SUSPENDED and engine.parked is not None:
            claim.parked = engine.parked
            return False
        if state == states.SUSPENDED:
            # By a command, or a listener, unless this conductor did it: not for others to go on.
            return not (claim.lost or self._stopping)
        return state in states.FLOW_ENDED

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

    def _end_if_cancelled(self, engine: engines.Engine) -> None:
        """Let a flow that was cancelled while no engine ran it begin with that."""
        why = control.recorded(engine.storage.flow_meta)
        if why is not None and why.cancelled:
            engine.notifier.register(
                states.RUNNING, lambda state, details: engine.cancel(reason=why.reason)
            )

    def _check_free(self, engine: engines.Engine) -> None:
        """Make sure that no other engine is about to end the flow.

        :raises FlowBusy: one is.
        """
        storage = engine.storage
        if storage.backend is not None:
            with contextlib.closing(storage.backend.get_connection()) as connection:
                lease = connection.get_lease(storage.flow_uuid)
            if lease is not None and not owners.died(lease.owner):
                raise leases.busy(lease, leases.LEASE_SECONDS)

    def _has_ended(self, engine: engines.Engine) -> bool:
        """Whether it is stored that the flow has come to its end."""
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

    # -- ending ---------------------------------------------------------------------------------

    def _on_job_done(self, job: jobs.Job, fut: futures.Future[bool]) -> None:
        """Consume, abandon or trash a job whose dispatch is over; `fut` says what came of it."""
        consume = trash = False
        try:
            consume = fut.result()
        except BaseException as error:  # which would end the thread
            trash = isinstance(error, Exception)
            what = "trashed" if trash else "abandoned"
            self._log.warning("%s cannot be run, and is %s", job, what, exc_info=True)
        try:
            self._finish_claim(job, consume, trash)
        finally:
            self._dispatched.discard(fut)
            self._wake.put(None)

    def _finish_claim(self, job: jobs.Job, consume: bool, trash: bool = False) -> None:
        claim = self._claims.pop(id(job), None)
        if claim is not None and claim.parked is not None:
            self._park(job, claim.parked)
        else:
            self._try_finish_job(job, consume, trash)

    def _park(self, job: jobs.Job, parked: control.Parked) -> None:
        """Give the claim on a job up until its flow can go on."""
        assert self._parking is not None
        try:
            self._parking.park(job, self._name, *parked)
        except exceptions.WbengineException as error:
            self._log.warning("%s could not be parked: %s", job, error)
            return
        details = {"job": job, "conductor": self, "persistence": self._persistence}
        self._notifier.notify("job_abandoned", details)

    def _try_finish_job(self, job: jobs.Job, consume: bool, trash: bool = False) -> None:
        board = self._jobboard
        finish, event = (
            (board.consume, "job_consumed")
            if consume
            else (board.trash, "job_trashed")
            if trash
            else (board.abandon, "job_abandoned")
        )
        details = {"job": job, "conductor": self, "persistence": self._persistence}
        try:
            finish(job, self._name)
        except (exceptions.JobFailure, exceptions.NotFound) as error:
            # The claim ends by itself, and who claims the job next finds what the flow came to.
            self._log.warning("%s could not be finished: %s", job, error)
            return
        if consume or trash:
            self._postponed.pop(job.uuid, None)
        self._notifier.notify(event, details)

    def _postpone(self, job: jobs.Job, error: BaseException) -> None:
        """Leave a job alone for a while, so that others get their turn.

        Longer each time, unless its flow is busy: that ends when a lease does.
        """
        now = time.monotonic()
        _, before = self._postponed.pop(job.uuid, (0.0, 0.0))
        if isinstance(error, exceptions.FlowBusy):
            before = 0.0
        if isinstance(error, exceptions.TransportFailure):  # not each of a thousand jobs is tried
            self._idle_until = now + _SHORTEST_PAUSE
        pause = min(max(2 * before, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        # Others may have removed those of long ago.
        for uuid, (until, _) in tuple(self._postponed.items()):
            if until + 2 * _LONGEST_PAUSE < now:
                self._postponed.pop(uuid, None)
        self._postponed[job.uuid] = (now + pause, pause)

    # -- claims that are held -------------------------------------------------------------------

    def _keep_claims(self, ended: threading.Event) -> None:
        """Extend the claims that are held, until `run` has ended."""
        beat = self.CLAIM_SECONDS / 3
        while not ended.wait(min(beat / 4, 0.5)):
            now = time.monotonic()
            for claim in tuple(self._claims.values()):
                if self._stopping or claim.lost:
                    claim.suspend()  # again: it does nothing to a flow that gets ready
                if claim.due <= now and not claim.lost:
                    claim.due = now + beat
                    self._extend(claim)

    def _extend(self, claim: _Claim) -> None:
        try:
            kept = claim.job.extend_expiry(self.CLAIM_SECONDS)
        except Exception as error:  # the next beat may succeed
            self._log.warning("The claim on %s could not be extended: %s", claim.job, error)
            return
        if not kept and id(claim.job) in self._claims:
            claim.lost = True
            claim.suspend()
            self._log.warning("The claim on %s was lost, and its flow suspended", claim.job)

    def _suspend_all(self) -> None:
        for claim in tuple(self._claims.values()):
            claim.suspend()
