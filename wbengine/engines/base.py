"""The engine: wires plan, storage, scheduler, lifecycle, run and executor.

This is the only module that knows all the parts.  Kinds of engines differ in one thing: the
executor that `_make_executor` gives them.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from threading import RLock
from typing import Any, ClassVar, Final

from wbengine import (
    _clock,
    _names,
    composite_executor,
    exceptions,
    signals,
    states,
    task,
)
from wbengine import invocation as calls
from wbengine import storage as storage_module
from wbengine.engines import (
    async_run,
    differences,
    flow_errors,
    ownership,
    requirements,
    selection,
)
from wbengine.engines import compilation as compilation_module
from wbengine.engines import options as options_module
from wbengine.permits import renewer
from wbengine.permits import tasks as limited
from wbengine.persistence import base as persistence
from wbengine.persistence import commands, lease_renewer, models
from wbengine.runtime import atoms, compiler, control, executors, saving, waits
from wbengine.runtime import plan as plan_module
from wbengine.runtime import run as run_module
from wbengine.runtime import scheduler as scheduler_module
from wbengine.types import notifier as notifier_module

__all__ = ["Engine", "check_seconds"]

LOG: Final = logging.getLogger(__name__)

#: What is asked of a run that gets ready.
_EarlyRequests = deque[control.CancelRequest | control.SuspendRequest]


def check_seconds(name: str, value: Any) -> None:
    """Refuse what is no number of seconds, of none or more; None is one without end.

    :raises TypeError: when it is not a number.
    :raises ValueError: when it is negative or NaN.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"The {name} must be a number of seconds or None, not {value!r}")
    if not 0 <= value <= math.inf or (isinstance(value, int) and value >= 2**1024):
        raise ValueError(f"The {name} must be a number of seconds or None, not {value!r}")


class Engine(abc.ABC):
    """Runs one flow: `compile`, `prepare`, `validate`, then `run` (which does the former itself).

    `notifier` tells of the flow's changes of state, `atom_notifier` of those of its tasks and
    retries.  Listeners are called in the thread that runs the engine, SUSPENDING in the one that
    suspends it; what they raise is logged, except interruptions, which end the run.

    One thread at a time may run the engine; `suspend`, `cancel` and the properties are for any
    thread.

    With a backend the flow is run by one engine at a time, wherever the others are: `run`,
    `run_iter`, `arun`, `prepare` and `reset` take the flow's lease, and give it back when they are
    over, however they end; compiling and reading work without.  Somebody else's run is an error
    (`on_busy='fail'`) or is waited for ('wait').  A change through `storage` outside of a run takes
    the lease too, and never waits.  The lease of an owner that died ends after 15
    seconds, or at once when its process is known to be dead: that of this host.  What somebody else
    changed meanwhile is read again first.  Who lost the lease, because it gave no sign of life for
    that long, writes, starts and tells nothing more.

    `durability` says what may be ahead of the store, and so what the end of this process, or of its
    host, can cost:

    - 'each' (the default): nothing is started, told to listeners, or forgotten by who ran it before
      the change that led to it is written; what happens in one turn of the loop is one write.  What
      was running runs again, or is asked for where it ran.
    - 'batch': one write at the end of each turn, after its tasks were started and its news told;
      where the tasks of a turn run in this thread, once a second too.  Lost can be the results of
      one turn; its tasks run again, maybe under a number of attempt that was used before.
    - 'end': one write when the run is suspended, ends or fails.  Lost can be all of the run.

    In all three the records of the atoms are written before anything starts, and whoever ran a task
    (a worker, its ledger) keeps the outcome until that is written: so a worker-based engine with a
    ledger runs nothing twice, whatever is lost.  Injections, metadata and progress are written with
    the next write of the run, and at once while nothing runs.

    A write that fails is tried three times, 5 seconds apart; then the run ends with
    `StorageFailure`, and the flow is in FAILURE here.  What runs in this process ends, and one more
    write is tried; what runs on workers goes on.  The next `run` of this engine, or of another one,
    goes on from there.

    Options: `never_resolve` (a failure is kept: nothing is retried or reverted), `defer_reverts`
    (default True: a retry's REVERT asks the retry around it, and the outermost one's reverts
    everything; False, as in TaskFlow: then only the flow of the innermost one is reverted),
    `inject_transient` (default True: what atoms inject is not written), `gather_statistics`
    (default True: seconds per state), `migrate` (a function of a `differences.Difference`, which
    says what to do where the flow is not the one any more that was recorded).

    `local_tasks`: which tasks run in this process, besides those marked `local`, where others run
    elsewhere: their names, classes, or dotted names of classes (also in one text, with commas).

    `strict_results` (default False): refuse the arguments and results that could not travel to a
    worker, as a worker-based engine does: the task fails with `NotEncodable`.  `timelimit`
    (default: none): seconds that one execution or reversion of a task may take which has no
    `timelimit` of its own, as that says: `(soft, hard)`, or only the hard one; in a text, they are
    separated by a comma.

    With a backend: `durability`, `on_busy`, and `lease` (15 seconds: when the flow is free if this
    process stops giving signs of life; for tests).
    """

    #: The options that a kind of engine takes.
    OPTIONS: ClassVar[Mapping[str, options_module.Option]] = options_module.EVERY

    #: For conductors: suspend the flow where nothing of it runs, and nothing is due for so many
    #: seconds.  None: it is waited for.
    park_after: float | None = None

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._flow = flow
        self._flow_detail = flow_detail
        self._backend = backend
        self._options = dict(options or {})
        #: The values of all options of the kind.
        self._settings = options_module.read(type(self).__name__, self.OPTIONS, self._options)
        # Either knows all states: listeners are often told one list for flows and atoms.
        known = {*states.FLOW_STATES, *states.ATOM_STATES}
        self._notifier: notifier_module.Notifier = notifier_module.RestrictedNotifier(known)
        self._atom_notifier: notifier_module.Notifier = notifier_module.RestrictedNotifier(
            known.union(states.INCIDENTS)
        )
        self._clock = _clock.SYSTEM
        self._storage = storage_module.Storage(self._flow_detail, self._backend)
        self._durability: str = self._settings["durability"]
        self._ownership = ownership.Ownership(
            self._storage,
            self._clock,
            on_busy=self._settings["on_busy"],
            lease_seconds=self._settings["lease"],
        )
        self._compilation: compilation_module.Compilation | None = None
        #: What is to be injected by the next run.
        self._inputs: Mapping[str, Any] = {}
        self._difference: differences.Difference | None = None
        # How often the records had been read when they were prepared.
        self._prepared_at = self._outlined_at = -1
        self._in_use: dict[str, object] = {}  # what runs or resets it now, see `_alone`
        # Again by the same thread, when a signal's handler suspends.
        self._state_lock = RLock()
        # What came before the run began, and is for it; None: no run gets ready.
        self._early: _EarlyRequests | None = None
        self._run: run_module.Run | None = None
        self._scheduler: scheduler_module.Scheduler | None = None
        self._began: float | None = None
        self._ended: float | None = None
        self._task_executor = self._make_executor()
        self._in_process = getattr(self._task_executor, "in_process", False)
        self._local_tasks: composite_executor.LocalTasks | None = None
        self._waits: waits.Waits | None = None
        self._limited: limited.LimitedTasks | None = None
        #: That, and the one for the tasks that stay in this process.
        self._running_executor: calls.TaskExecutor = self._task_executor

    @abc.abstractmethod
    def _make_executor(self) -> calls.TaskExecutor:
        """Make what runs this engine's tasks, from its options; called once, at construction."""

    def _check_tasks(self, plan: plan_module.Plan) -> None:  # noqa: B027  (a default)
        """Refuse tasks that the executor cannot run.

        :raises CompilationFailure: the text names them.
        """

    @classmethod
    def known_options(cls) -> frozenset[str]:
        """The names of all options this kind of engine understands."""
        return frozenset(cls.OPTIONS)

    @property
    def flow(self) -> Any:
        return self._flow

    @property
    def options(self) -> Mapping[str, Any]:
        """The options the engine was made with."""
        return self._options

    @property
    def notifier(self) -> notifier_module.Notifier:
        """Tells of the flow's changes of state."""
        return self._notifier

    @property
    def atom_notifier(self) -> notifier_module.Notifier:
        """Tells of the atoms' changes of state; and those who register for just that, of what else
        happens to them (`states.INCIDENTS`).
        """
        return self._atom_notifier

    @property
    def storage(self) -> storage_module.Storage:
        """What is known of this run: results, failures, states, histories."""
        return self._storage

    @property
    def compilation(self) -> compilation_module.Compilation | None:
        """The compiled flow; None before `compile`."""
        return self._compilation

    @property
    def executor(self) -> calls.TaskExecutor:
        """What runs this engine's tasks."""
        return self._task_executor

    @property
    def difference(self) -> differences.Difference | None:
        """What the flow and the records of an earlier run did not agree on; None: on everything.

        Known from `compile` on; `prepare` acts on it.
        """
        if self._prepared or self._difference is not None or self._compilation is None:
            return self._difference
        return differences.compare(self._storage, list(_in_order(self._compilation.plan)))

    @property
    def statistics(self) -> dict[str, Any]:
        """Figures of the current or latest run; empty before the first, or when not gathered.

        - `active_for`: seconds from the first state of the loop to the last, or until now;
        - `seconds_per_state`: how they divide into `resuming`, `scheduling`, `waiting`,
          `analyzing`;
        - `completed`: how many executions and reversions came to an end;
        - `incomplete`: how many are under way, `awaiting`: how many are ready to be begun;
        - `withdrawn`: how many were begun, and taken back before they started;
        - `discarded_failures`: how many failed when the run was over already.
        """
        run, scheduler, began = self._run, self._scheduler, self._began
        if (
            run is None
            or scheduler is None
            or began is None
            or not self._settings["gather_statistics"]
        ):
            return {}
        ended = self._ended if self._ended is not None else self._clock.monotonic()
        stats = run.stats
        spent = stats.seconds_per_state
        return {
            "seconds_per_state": {name.lower(): spent.get(name, 0.0) for name in _TIMED},
            "active_for": ended - began,
            "completed": stats.completed,
            "incomplete": scheduler.in_flight,
            "awaiting": scheduler.waiting,
            "withdrawn": stats.withdrawn,
            "discarded_failures": stats.discarded,
        }

    # -- getting ready --------------------------------------------------------------------------

    def _compiled(self, what: str) -> compilation_module.Compilation:
        if self._compilation is None:
            raise exceptions.InvalidState(f"An engine must be compiled before it is {what}")
        return self._compilation

    def compile(self) -> None:
        """Turn the flow into what the engine runs; does nothing the second time.

        :raises CompilationFailure: the flow makes no sense (`Duplicate` names, ...).
        """
        if self._compilation is not None:
            return
        plan = compiler.compile(self._flow)
        made = compilation_module.Compilation(plan, limited.limits_of(plan))
        self._local_tasks = selection.local_tasks(made.plan, self._settings["local_tasks"])
        if self._local_tasks is not None:
            found = [n for n, item in enumerate(made.plan.items) if isinstance(item, task.WaitFor)]
            if found:
                self._waits = waits.Waits(found, self._flow_detail.uuid, self._backend)
        self._check_tasks(made.plan)
        if self._local_tasks is not None and not self._in_process:
            # Local tasks stay here, whatever the executor does with the others.
            local = executors.ThreadTaskExecutor(limit=self._settings["timelimit"])
            self._running_executor = composite_executor.CompositeExecutor(
                local, self._task_executor
            )
        self._compilation = made

    def prepare(self) -> None:
        """Make sure that every atom has its record; a flow that was reverted starts anew.

        The second time it does only the latter.

        What differs between the flow and the records of an earlier run is logged, and told to the
        option `migrate`, before anything is written.

        :raises IncompatibleVersion: an atom was recorded under a version whose first number is
            another one, and `migrate` does not say what to do with that.
        :raises Duplicate: an atom was recorded as one of the other kind (task or retry).
        :raises InvalidState: before `compile`.
        :raises FlowBusy: another engine runs the flow.  With `on_busy='wait'` it is waited for,
            until `suspend` ends that.
        :raises StorageFailure: the records cannot be written.
        """
        plan = self._compiled("prepared").plan
        if self._prepared and self._storage.get_flow_state() != states.REVERTED:
            return
        owned = self._ownership.held is not None
        holding = contextlib.nullcontext() if owned else self._ownership.owned(momentary=True)
        with holding, self._storage.writer.batch():
            if not self._prepared:
                self._prepare(plan)
            if self._storage.get_flow_state() == states.REVERTED:
                self._reset(plan.atoms())

    def _provide(self, values: Mapping[str, Any]) -> None:
        """Inject what `load` was given for a flow that was kept already."""
        try:
            self._storage.inject(values)
        except exceptions.FlowBusy:
            if not self._ownership.waits:
                raise
            self._inputs = values  # the run injects them, which waits for the flow

    @property
    def _prepared(self) -> bool:
        return self._prepared_at == self._storage.readings

    def _prepare(self, plan: plan_module.Plan) -> None:
        atoms = list(_in_order(plan))
        self._difference = differences.apply_migration(
            self._storage, atoms, self._settings["migrate"], self._difference
        )
        # Another process died while it ran it: it is taken over.
        left_running = self._storage.get_flow_state() in _UNDER_WAY
        if left_running:
            self._change_state(states.RESUMING)
        self._storage.ensure_atoms(atoms)
        if self._inputs:
            self._storage.inject(self._inputs)
            self._inputs = {}
        for atom in atoms:
            if atom.inject:
                self._storage.inject_atom_args(
                    atom.name, atom.inject, transient=self._settings["inject_transient"]
                )
        self._storage.bind(plan, len(plan))
        if left_running:
            self._change_state(states.SUSPENDED)
        self._prepared_at = self._storage.readings

    def validate(self) -> None:
        """Check that everything atoms need is provided; changes nothing.

        :raises MissingDependencies: an atom needs what nothing provides.
        :raises InvalidState: before `prepare`.
        """
        plan = self._compiled("validated").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is validated")
        error = requirements.missing(self._flow, plan, self._storage)
        if error is not None:
            raise error

    # -- running --------------------------------------------------------------------------------

    def run(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Run the flow to an end state (SUCCESS, FAILURE, REVERTED), or to SUSPENDED.

        Goes on from where an earlier run, here or elsewhere, was suspended or died.  A flow in
        SUCCESS runs only after `reset`; one that was reverted starts anew; one in FAILURE goes on,
        with `never_resolve` it stays there (see `reset`).

        :param timeout: bounds each single wait of the loop; it is no limit for the run.
        :param deadline: seconds from this call.  When they are over, nothing more starts, what
            waits to be started is withdrawn, what runs finishes, and everything is reverted (with
            `never_resolve` nothing is).  What is being reverted as a whole anyway, or has ended
            when the time is looked at, is not touched.
        :raises DeadlineExceeded: time was up; its `cause` is what failed besides.
        :raises Cancelled: somebody called `cancel`; its `cause` is what failed besides.
        :raises ExecutionFailure: the engine is running already.
        :raises FlowBusy: another engine runs the flow; the text says which process on which host.
            Nothing was changed.  With `on_busy='wait'` it is waited for, as long as `deadline`
            allows, and `suspend` ends that.
        :raises LeaseLost: another engine took the flow over during the run, or it was removed.
        :raises StorageFailure: the store could not be written; see the class.
        :raises TypeError: `timeout` or `deadline` is no number.
        :raises ValueError: one of them is negative or NaN.
        :raises Exception: what the flow failed with: a single failure as itself, several as one
            `WrappedFailure`; besides what `compile`, `prepare` and `validate` raise.  After a
            suspension nothing is raised.

        `KeyboardInterrupt`, `SystemExit`, and what else is no `Exception`, suspend the flow and
        leave `run`, once what runs elsewhere has ended: in this thread, in a retry controller, and
        in a task that runs on this host (of a process of its own: the first two).  What is
        `detached`, and `async`, is left to the next run.  The task or retry that was interrupted
        stays RUNNING or REVERTING, no retry is asked, nothing is reverted, and the next run runs it
        again.  On a worker they are the failure of the task.
        """
        self._drive(timeout, deadline, deque())

    async def arun(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """`run`, awaited: in a thread of its own, while other coroutines go on.

        Works in any running event loop; many engines may be awaited at once.  Cancelling it
        suspends the flow, waits for what runs, and only then raises `CancelledError`; the flow is
        SUSPENDED, and the next `run` or `arun` goes on.  Listeners are called in that thread.

        :raises BaseException: what `run` raises.
        """
        early: _EarlyRequests = deque()

        def suspend() -> None:
            early.append(control.SuspendRequest())  # the run may not even get ready yet
            with contextlib.suppress(exceptions.InvalidState):  # nor be compiled
                self.suspend()

        await async_run.in_thread(lambda: self._drive(timeout, deadline, early), suspend)

    def _drive(self, timeout: float | None, deadline: float | None, early: _EarlyRequests) -> None:
        due = self._due(timeout, deadline)
        with self._session(due, deadline, early) as run:
            if run is None:
                return
            for _ in run.run_iter(timeout, due, measure=self._settings["gather_statistics"]):
                pass
        # Out here, and in no generator, a StopIteration is like any other exception.
        flow_errors.raise_failures(run, self._storage, deadline)

    def run_iter(
        self, timeout: float | None = None, *, deadline: float | None = None
    ) -> Generator[str, Any, None]:
        """Run the flow as `run` does, and yield each state of the run loop, the end state last.

        Nothing runs, and no other run is refused, before the first state is asked for.
        `send(True)` suspends.  `close()`, and giving the iterator up, suspends and waits for what
        runs; it raises no failure of the flow.  An exception thrown in ends the run with FAILURE
        and passes through; the next run goes on.

        :raises Exception: as `run`; about `timeout` and `deadline` when called, the rest while
            iterating.
        """
        return self._steps(timeout, deadline, self._due(timeout, deadline))

    def _due(self, timeout: float | None, deadline: float | None) -> float | None:
        """The moment on the clock at which time is up."""
        check_seconds("timeout", timeout)
        check_seconds("deadline", deadline)
        return None if deadline is None else self._clock.monotonic() + deadline

    def _steps(
        self, timeout: float | None, deadline: float | None, due: float | None
    ) -> Generator[str, Any, None]:
        closing = False
        with self._session(due, deadline, deque()) as run:
            if run is None:
                yield states.SUSPENDED
                return
            for state in run.run_iter(timeout, due, measure=self._settings["gather_statistics"]):
                if closing:
                    continue
                try:
                    if (yield state):
                        self.suspend()
                except GeneratorExit:
                    closing = True
                    self.suspend()
        if not closing:
            flow_errors.raise_failures(run, self._storage, deadline)

    @contextlib.contextmanager
    def _session(
        self, due: float | None, deadline: float | None, early: _EarlyRequests
    ) -> Iterator[run_module.Run | None]:
        """Everything around the loop of one run; whoever enters drives the run to its end.

        Requests that come while it gets ready are added to `early`.  None: it was suspended while
        it waited for another owner to end.
        """
        with self._alone(exceptions.ExecutionFailure("The engine is running already")):
            self._early = early
            self.compile()
            with contextlib.ExitStack() as owning:
                try:
                    owning.enter_context(self._ownership.owned(due, deadline, early))
                except ownership.WaitEnded:
                    for request in early:
                        if isinstance(request, control.CancelRequest):
                            raise self._cancelled_early(request.reason) from None
                    yield None
                    return
                with self._storage.writer.batch():
                    self.prepare()
                    self.validate()
                    self._keep_outline()
                    run = self._make_run()
                    self._began, self._ended = self._clock.monotonic(), None
                    # Also if an interruption comes while what ran it is stopped.
                    with contextlib.ExitStack() as last, self._executing(run):
                        yield run
                        last.callback(self._end, run)

    @contextlib.contextmanager
    def _alone(self, refusal: Exception) -> Iterator[None]:
        """One run or reset at a time; raises `refusal` while there is another.

        The mark tells by itself who made it: an interruption that comes right after it was made,
        before anything else is known, takes it away as well.
        """
        mark = object()
        try:
            if self._in_use.setdefault("now", mark) is not mark:
                raise refusal
            yield
        finally:
            if self._in_use.get("now") is mark:
                self._early = None
                del self._in_use["now"]

    def _keep_outline(self) -> None:
        """Once for all runs of this engine, unless the records were read anew since."""
        if self._backend is not None and self._outlined_at != self._prepared_at:
            self._storage.writer.save_outline(self._compiled("run").outline)
            self._outlined_at = self._prepared_at

    def _end(self, run: run_module.Run) -> None:
        """Enter the state that a run came to, unless an interruption suspended it at the last."""
        if self._storage.get_flow_state() == states.SUSPENDED:
            return
        plan = self._compiled("run").plan
        self._change_state(run.state, flow_errors.in_short(run, self._storage, plan))

    def _cancelled_early(self, reason: str | None) -> exceptions.ExecutionFailure:
        given_up = control.GivenUp(True, reason)
        return given_up.error(
            f"Flow {self._storage.flow_name!r}, which is run by somebody else and was not changed,"
        )

    @contextlib.contextmanager
    def _executing(self, run: run_module.Run) -> Iterator[None]:
        self._running_executor.start()  # one that cannot start changes nothing of the flow
        try:
            self._change_state(states.RUNNING)
            self._begin(run)
            if self._ownership.held is not None:
                self._ownership.held.on_command = self._obey
            if self._durability != saving.EACH:
                # Who knows an atom by its record must find that again.
                self._storage.writer.flush()
            yield
        except BaseException as error:
            if not self._left(run, error):
                self._abort(run, error)
            raise
        finally:
            run.stop_signal.end()
            self._running_executor.stop()
            if self._limited is not None:
                self._limited.close()
                self._limited = None
            self._ended = self._clock.monotonic()

    def _left(self, run: run_module.Run, error: BaseException) -> bool:
        """Leave everything as it is, if others can go on from there and we cannot.

        Somebody else runs the flow; or the store cannot be written, and the executor outlives
        this engine: what ends now is found by the next run, and nothing is let go of before that.
        """
        held = self._ownership.held
        if isinstance(error, exceptions.LeaseLost) and held is not None:
            held.lose(error)
        if held is not None and held.error is not None:
            # Nobody is told: it is not our flow any more.
            run.stop_signal.disown()
            self._storage.flow_detail.state = states.FAILURE
        elif self._storage.writer.failing and self._running_executor.survives_engine:
            run.stop_signal.disown()
            self._change_state(states.FAILURE, flow_errors.line_of(error), saved=False)
        else:
            return False
        self._storage.writer.drop_pending()
        return True

    def _abort(self, run: run_module.Run, error: BaseException) -> None:
        """Leave a legal state behind, whatever happened in the loop.

        An interruption (`KeyboardInterrupt`, `SystemExit`) suspends: the next run goes on.  It does
        so with what is detached, too, which is not waited for.
        """
        try:
            run.abandon()
            self._running_executor.abandon_detached()
            self._running_executor.finish()
            self._running_executor.stop()
            run.collect()
        except exceptions.StorageFailure as problem:
            if not isinstance(error, exceptions.StorageFailure):
                raise
            LOG.warning("Flow %r waits to be written: %s", self._storage.flow_name, problem)
        finally:  # whatever else comes: a second Ctrl-C, a listener that exits
            if isinstance(error, Exception):
                self._change_state(states.FAILURE, flow_errors.line_of(error), saved=False)
            else:
                try:
                    self._change_state(states.SUSPENDING, saved=False)
                finally:
                    self._change_state(states.SUSPENDED, saved=False)

    def _make_run(self) -> run_module.Run:
        plan = self._compiled("run").plan
        inbox: control.Inbox = self._clock.queue()
        wake: Callable[[], None] = functools.partial(inbox.put, None)
        held, saver = self._ownership.held, None
        if held is not None and self._durability != saving.END:
            immediate = self._running_executor.immediate
            early = saving.EarlyFlush(self._storage.writer, wake, self._clock, immediate=immediate)
            wake, held.on_tick = early, early.on_tick
        lifecycle = self._make_lifecycle(wake)
        lifecycle.give_back_waits()
        scheduler = self._scheduler = scheduler_module.Scheduler(plan, _saved_states(self._storage))
        if held is not None:
            saver = saving.Saver(self._storage.writer, self._durability, held.check)
        run = run_module.Run(
            plan,
            scheduler,
            lifecycle,
            saver,
            self._running_executor,
            inbox,
            never_resolve=self._settings["never_resolve"],
            defer_reverts=self._settings["defer_reverts"],
            clock=self._clock,
            park=None if self.park_after is None else lambda: self._suspend(control.PARKED),
            park_after=self.park_after or 0.0,
            waits=self._waits,
            limited=self._make_limited(plan, functools.partial(inbox.put, None)),
        )
        if self._waits is not None:
            self._waits.wake = functools.partial(inbox.put, None)
            if held is not None:
                held.on_signals = self._waits.add
                held.awaits_signals = lambda: run.held.awaits_signals
        if held is not None:
            held.on_lost = run.stop_signal.disown
        return run

    def _make_limited(
        self, plan: plan_module.Plan, wake: Callable[[], None]
    ) -> limited.LimitedTasks | None:
        """What keeps the limits of the flow's tasks; None: there are none."""
        self._limited = None
        limits = self._compiled("run").limits
        if limits:
            held, items, storage = self._ownership.held, plan.items, self._storage

            def arguments(node: int) -> Mapping[str, Any]:
                item: Any = items[node]
                if plan.kinds[node] == plan_module.FLOW:
                    return storage.inputs()
                return storage.gather(node, item.name, item.rebind, item.optional)

            self._limited = limited.LimitedTasks(
                limits,
                renewer.of_process()(self._settings["limits"] or self._backend),
                renewer.Member(
                    storage.flow_uuid,
                    0 if held is None else held.lease.epoch,
                    self._settings["lease"],
                ),
                arguments=arguments,
                wake=wake,
                of_flow=0 in limits and plan.kinds[0] == plan_module.FLOW,
                most=1 if self._running_executor.immediate else None,
            )
        return self._limited

    def _make_lifecycle(self, on_progress: Callable[[], None]) -> atoms.AtomLifecycle:
        return atoms.AtomLifecycle(
            self._compiled("run").plan,
            self._storage,
            self._atom_notifier,
            in_process=self._in_process,
            on_progress=on_progress,
            executor=self._running_executor,
            local_tasks=self._local_tasks,
            keep_logs=self._settings["keep_logs"],
            waiting=() if self._waits is None else self._waits.nodes,
        )

    # -- its state, and what any thread may ask of it --------------------------------------------

    def suspend(self) -> None:
        """Let nothing more start; what runs finishes, then the flow is SUSPENDED.

        From any thread, from listeners and tasks, from signal handlers; any number of times.  Does
        not wait.  While `run` gets ready it is kept, and nothing starts.  Does nothing while the
        flow does not run.  A flow that comes to its end all the same is not SUSPENDED.

        :raises InvalidState: before `compile`, where `run` was not called.
        """
        self._suspend()

    def _suspend(self, why: str | None = None) -> None:
        """`suspend`; `why` goes into the flow's history."""
        if self._keep(control.SuspendRequest(why)):
            return
        self._compiled("suspended")
        if self._ownership.wake():
            return  # it is waited for, to prepare it or to reset it, and will not be any more
        if self._backend is not None and self._storage.writer.lease is None:
            return  # what the records say of a run is about one that died
        with self._state_lock:
            # Of the same run as the state: a later one must not hear of it.
            run = self._run
            moved, old_state = self._storage.move_flow(states.SUSPENDING, self._clock.time(), why)
        if moved:
            self._tell_state(states.SUSPENDING, old_state)
            if run is not None:
                run.stop_signal.suspend()

    @property
    def parked(self) -> control.Parked | None:
        """Until when the latest run was suspended for `park_after`; None: it was not."""
        return None if self._run is None else self._run.parked

    def cancel(self, *atoms: Any, reason: str | None = None) -> bool:
        """End the run, or some of it: nothing more starts, and everything is reverted.

        Without `atoms` all that runs is told to end; with some of them (tasks, or flows and retries
        with all inside, or names) only those are, what else runs finishes, and nothing happens if
        all of them have ended already.  What has not started never will.  What runs is told by
        `task.cancelled`; where it runs in a process of its own, that is killed after
        `cancel_grace` seconds.  What ends because of that fails with `Cancelled`, which no retry is
        asked about; what ends well all the same is reverted like all the rest.  What is being
        reverted goes on, what could not be reverted in an earlier run is reverted again, a flow
        that comes to its end all the same is left alone, and with `never_resolve` nothing is
        reverted.

        `run` raises `Cancelled`, with the `reason`.  That is kept: a run that dies, or is
        suspended, while it reverts is gone on with there, whoever goes on with it.

        From any thread, from listeners and tasks, from signal handlers; any number of times.  Does
        not wait.

        :returns: False when no run is going on: then nothing is done.  (A flow that is suspended is
            reverted by `run(deadline=0)`.)
        :raises InvalidState: before `compile`.
        :raises NotFound: there is no such task, retry or flow in this one.
        :raises TypeError: an atom is none of these, or the reason is no text.
        """
        plan = self._compiled("cancelled").plan
        if not isinstance(reason, str | None):
            raise TypeError(f"The reason is a text or None, not {reason!r:.80}")
        nodes = selection.nodes_of(plan, atoms) if atoms else None
        request = control.CancelRequest(nodes, reason)
        if self._keep(request):
            return True
        run = self._run
        return run is not None and run.stop_signal.cancel(request)

    def signal(self, name: str, value: Any = None) -> None:
        """Give the flow a signal, for the tasks that wait for it (`task.WaitFor`), now or later.

        From any thread, whether the flow runs or not; once under each name.  With a backend it is
        kept with the flow.

        :raises NotFound: no task of the flow waits for such a signal; the text names the nearest.
        :raises InvalidState: the flow has ended.
        :raises Duplicate: it was given this signal before.
        :raises NotEncodable: the value cannot be sent, or is too long.
        :raises TypeError, ValueError: the name can be none.
        :raises CompilationFailure: the flow makes no sense.
        """
        self.compile()
        made = signals.Signal.of(name, value, self._clock.time())
        waiting = self._waits
        known = self._compiled("signalled").outline.signals if waiting is not None else []
        if waiting is not None and self._backend is not None:
            lease_renewer.send_signal(self._backend, self._flow_detail.uuid, made, known)
            waiting.add([made])
            return
        flow = self._storage.flow_name
        if waiting is None or name not in known:
            raise exceptions.NotFound(
                f"No task of flow {flow!r} waits for a signal {name!r}{_names.hint(name, known)}"
            )
        if (state := self._storage.get_flow_state()) in states.FLOW_ENDED:
            raise exceptions.InvalidState(
                f"Flow {flow!r} has ended in {state}: signal {name!r} comes too late"
            )
        if not waiting.add([made]):
            raise exceptions.Duplicate(
                f"Flow {flow!r} was given signal {name!r} before, and that one counts"
            )

    def _keep(self, request: control.CancelRequest | control.SuspendRequest) -> bool:
        """Keep a request for the run that gets ready, which waits no longer; False: none does."""
        with self._state_lock:
            early = self._early
            if early is not None:
                early.append(request)
        if early is None:
            return False
        self._ownership.wake()
        return True

    def _obey(self, command: persistence.FlowCommand) -> None:
        """Obey a command that was left in the store."""
        LOG.info("Flow %r is to be %s", self._storage.flow_name, command.in_words())
        if command.what == commands.SUSPEND:
            self._suspend(command.in_words())
        else:
            self.cancel(reason=command.told)

    def _begin(self, run: run_module.Run) -> None:
        """From now on `run` is suspended and cancelled, also by what came before it began."""
        with self._state_lock:
            self._run = run
            early, self._early = self._early, None
        for request in early or ():
            if isinstance(request, control.CancelRequest):
                run.stop_signal.cancel(request)
            else:
                self._suspend(request.why)

    def _change_state(self, state: str, why: str | None = None, *, saved: bool = True) -> bool:
        """Enter `state` and tell of it: after it is `saved`, if that is what durability means.

        `why` goes into the flow's history.
        """
        with self._state_lock:
            moved, old_state = self._storage.move_flow(state, self._clock.time(), why)
        if moved:
            if saved and self._durability == saving.EACH and len(self._notifier):
                self._storage.writer.flush()
            self._tell_state(state, old_state)
        return moved

    def _tell_state(self, state: str, old_state: str) -> None:
        if len(self._notifier):
            self._notifier.notify(
                state,
                {
                    "engine": self,
                    "flow_name": self._storage.flow_name,
                    "flow_uuid": self._storage.flow_uuid,
                    "old_state": old_state,
                },
            )

    def reset(self, *, failed_only: bool = False) -> None:
        """Forget all results and failures, so that the next run starts anew.

        From SUCCESS, FAILURE, REVERTED and SUSPENDED; nothing is reverted.  Attempt numbers go on.

        :param failed_only: forget only what failed, so that the next run executes that again, and
            then what comes after it; the way on from what `never_resolve` kept.
        :raises InvalidState: before `prepare`, while the flow runs, or, with `failed_only`, when
            part of the flow was or is to be reverted.  Then nothing is changed.
        :raises FlowBusy: another engine runs the flow (see `prepare`).
        """
        plan = self._compiled("reset").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is reset")
        refusal = exceptions.InvalidState("The engine is running; it cannot be reset now")
        with (
            self._alone(refusal),
            self._ownership.owned(momentary=True),
            self._storage.writer.batch(),
        ):
            self.prepare()
            states.check_flow_transition(self._storage.get_flow_state(), states.PENDING)
            self._reset(_failed_nodes(self._storage) if failed_only else plan.atoms())

    def _reset(self, nodes: Iterable[int]) -> None:
        lifecycle = self._make_lifecycle(_nothing)
        lifecycle.reset(nodes)
        if self._durability == saving.EACH:
            self._storage.writer.flush()
        for key in control.KEYS:
            self._storage.flow_meta.pop(key, None)
        lifecycle.deliver()
        self._change_state(states.PENDING)


#: States of a flow that only a run leaves, unless it dies.
_UNDER_WAY: Final = (states.RUNNING, states.SUSPENDING, states.RESUMING)

#: What `statistics` measures, in lower case.
_TIMED: Final = (states.RESUMING, states.SCHEDULING, states.WAITING, states.ANALYZING)


def _in_order(plan: plan_module.Plan) -> Iterator[Any]:
    """The atoms in the order of their records, and so of the values of a name that many provide:
    what is inside a flow comes before the flow's retry.
    """
    for kind, item in zip(plan.kinds, plan.items, strict=True):
        if kind == plan_module.TASK:
            yield item
        elif kind == plan_module.FLOW_END and item.retry is not None:  # type: ignore[union-attr]
            yield item.retry  # type: ignore[union-attr]


def _saved_states(storage: storage_module.Storage) -> dict[int, tuple[str | None, str]]:
    """State and intention of each atom for which something was done, or is to be undone."""
    return {
        node: (record.state, record.intention)
        for node, record in enumerate(storage.records)
        if record is not None
        and (record.state != states.PENDING or record.intention != states.EXECUTE)
    }


def _failed_nodes(storage: storage_module.Storage) -> list[int]:
    """The atoms that failed.

    :raises InvalidState: something is reverted, or is to be, so that it cannot just go on.
    """
    failed = []
    for node, record in enumerate(storage.records):
        if record is None:
            continue
        if record.intention in (states.REVERT, states.RETRY):
            raise exceptions.InvalidState(
                f"Flow {storage.flow_name!r} cannot go on where it failed: atom"
                f" {record.name!r} is {record.state} and means to {record.intention};"
                " revert what is left, or reset everything"
            )
        if record.state == states.FAILURE:
            failed.append(node)
    return failed


def _nothing() -> None:
    """Nobody waits for what is written here."""
