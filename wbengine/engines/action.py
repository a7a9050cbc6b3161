"""The engine: wires plan, storage, scheduler, lifecycle, run and executor.

This is the only module that knows all the parts.  Kinds of engines differ in one thing: the
executor that `_make_executor` gives them.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from threading import RLock
from typing import Any, Final

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
    base,
    differences,
    flow_errors,
    ownership,
    requirements,
    saved_states,
    selection,
)
from wbengine.engines import compilation as compilation_module
from wbengine.engines import options as options_module
from wbengine.permits import renewer
from wbengine.persistence import base as persistence
from wbengine.persistence import commands, lease_renewer, models
from wbengine.runtime import atoms, compiler, control, executors, limited, saving, waits
from wbengine.runtime import plan as plan_module
from wbengine.runtime import run as run_module
from wbengine.runtime import scheduler as scheduler_module

__all__ = ["ActionEngine"]

LOG: Final = logging.getLogger(__name__)

#: What is asked of a run that gets ready.
_EarlyRequests = deque[control.CancelRequest | control.SuspendRequest]


class ActionEngine(base.Engine):
    """Runs a flow on an executor.

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

    With a backend (see `base.Engine`, which says what they mean): `durability` ('each', 'batch' or
    'end'), `on_busy` ('fail' or 'wait'), and `lease` (15 seconds: when the flow is free if this
    process stops giving signs of life; for tests).
    """

    OPTIONS = options_module.EVERY

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(flow, flow_detail, backend, options)
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

    def _check_tasks(self, plan: plan_module.Plan) -> None:
        """Refuse tasks that the executor cannot run.

        :raises CompilationFailure: the text names them.
        """

    @property
    def storage(self) -> storage_module.Storage:
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
        if self._prepared or self._difference is not None or self._compilation is None:
            return self._difference
        return differences.compare(self._storage, list(_in_order(self._compilation.plan)))

    @property
    def statistics(self) -> dict[str, Any]:
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
        if self._compilation is not None:
            return
        plan = compiler.compile(self._flow)
        made = compilation_module.Compilation(plan, selection.limits(plan))
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
        try:
            super()._provide(values)
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
        plan = self._compiled("validated").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is validated")
        error = requirements.missing(self._flow, plan, self._storage)
        if error is not None:
            raise error

    # -- running --------------------------------------------------------------------------------

    def run(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        self._drive(timeout, deadline, deque())

    async def arun(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
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
        return self._steps(timeout, deadline, self._due(timeout, deadline))

    def _due(self, timeout: float | None, deadline: float | None) -> float | None:
        """The moment on the clock at which time is up."""
        base.check_seconds("timeout", timeout)
        base.check_seconds("deadline", deadline)
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
        scheduler = self._scheduler = scheduler_module.Scheduler(
            plan, saved_states.states_by_node(self._storage)
        )
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
                held.awaits_signals = lambda: run.awaits_signals
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
                storage.flow_uuid,
                0 if held is None else held.lease.epoch,
                self._settings["lease"],
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
        return None if self._run is None else self._run.parked

    def cancel(self, *atoms: Any, reason: str | None = None) -> bool:
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
            self._reset(saved_states.failed_nodes(self._storage) if failed_only else plan.atoms())

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


def _nothing() -> None:
    """Nobody waits for what is written here."""
