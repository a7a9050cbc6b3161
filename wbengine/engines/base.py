"""The engine: connects plan, storage, scheduler, lifecycle, run and executor.

Kinds of engines differ only in the executor that `_make_executor` returns.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wbengine import _payloads, exceptions, signals, states
from wbengine import storage as storage_module
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks, scopes
from wbengine._introspection import object_names
from wbengine._runtime import (
    atom_lifecycle,
    compiler,
    control,
    deadlines,
    executors,
    inbox,
    saving,
)
from wbengine._runtime import plan as plan_module
from wbengine._runtime import run as run_module
from wbengine._runtime import scheduler as scheduler_module
from wbengine._runtime.executors import composite
from wbengine._runtime.gates import chain, signals_and_sleeps
from wbengine._tasks.limit_attributes import Quota
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine.engines import (
    _async_run,
    _atom_selection,
    _differences,
    _flow_errors,
    _gate_setup,
    _ownership,
    _preparation,
)
from wbengine.engines import _compilation as compilation_module
from wbengine.engines import _option_table as options_module
from wbengine.persistence import (
    _commands,
    _history,
    _lease_renewer,
    _sealed_fields,
    models,
)
from wbengine.persistence import base as persistence
from wbengine.types import _references
from wbengine.types import notifier as notifier_module

__all__ = ["Engine", "check_seconds"]

if TYPE_CHECKING:
    from wbengine._runtime.undo_plan import UndoPlan
    from wbengine._runtime.workflows import manager
    from wbengine.engines import _rerunning
    from wbengine.persistence._edits import Edits

LOG: Final = logging.getLogger(__name__)

#: Reasons of suspensions that do not replace the reason of an earlier one.
_NO_COMMAND: Final = (None, _history.PARKED)

_EarlyRequests = deque[control.CancelRequest | control.SuspendRequest]


def check_seconds(name: str, value: Any) -> None:
    """Check that `value` is a non-negative number of seconds, or None for no limit.

    :raises TypeError: if it is not a number.
    :raises ValueError: if it is negative or NaN.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be 0 or more seconds or None, got {value!r}")
    if not 0 <= value <= math.inf or (isinstance(value, int) and value >= 2**1024):
        raise ValueError(f"{name} must be 0 or more seconds or None, got {value!r}")


class Engine(abc.ABC):
    """Runs one flow: `compile`, `prepare`, `validate`, `run` (which calls the other three itself).

    `notifier` reports the state changes of the flow, `atom_notifier` the ones of its atoms.
    Listeners are called in the thread that runs the engine; for SUSPENDING, in the thread that
    suspends it. Exceptions of listeners are logged, except interruptions, which end the run.

    One thread at a time may run the engine. Any thread may call `suspend` and `cancel` and read the
    properties.

    With a backend, one engine at a time runs the flow, on any host. `run`, `run_iter`, `arun`,
    `prepare` and `reset` acquire the lease of the flow and release it at their end; compiling
    and reading need no lease. If another engine runs the flow, they raise (`on_busy='fail'`) or
    wait ('wait'). The lease of a dead owner expires after 15 seconds, or at once if its process
    was on this host. An engine that lost its lease writes, starts and notifies nothing more.

    The option `durability` ('each', 'batch' or 'end') defines when the run is written to the
    store, and so how much is lost if this process or its host stops. With each value, the engine
    writes the records of the atoms before it starts anything. Until the engine has written the
    result of a worker, the reply stays unacknowledged and the ledger keeps the row of the
    request. So a worker-based engine with a ledger runs no task twice.

    A write whose connection is lost is repeated at once. A write that fails for another reason is
    tried three times, 5 seconds apart, unless a record is too large. Then the run ends with
    `StorageFailure`, and the flow is in FAILURE in this process. Tasks in this process end, and one
    more write is tried; tasks on workers continue. The next `run`, of any engine, continues from
    there.

    The guide "Run flows" lists the options.
    """

    OPTIONS: ClassVar[Mapping[str, options_module.Option]] = options_module.COMMON

    #: Set by conductors: suspend the flow if nothing runs and nothing is due within these seconds.
    #: None: wait instead.
    park_after: float | None = None

    #: Set by operations and conductors: raises an exception for states from which the first run of
    #: this engine must not start. Called under the lease of the flow, before anything is changed.
    check_state: Callable[[str], object] | None = None

    #: Set by conductors: `run` leaves a flow suspended that a command suspended.
    keeps_suspended: bool = False

    #: Set by conductors: a workflow that does not repeat its recorded steps suspends the flow
    #: instead of ending it in FAILURE (see `FlowDetail.is_blocked`).
    suspends_on_difference: bool = False

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if flow_detail.meta_value(_sealed_fields.MARK) is not None:
            _sealed_fields.check_opened(flow_detail)
        self._flow = flow
        self._flow_detail = flow_detail
        self._backend = backend
        self._options = dict(options or {})
        self._settings = self.read_options(self._options)
        # Both accept all states, because listeners often register one list for flows and atoms.
        all_states = {*states.FLOW_STATES, *states.ATOM_STATES}
        self._notifier: notifier_module.Notifier = notifier_module.RestrictedNotifier(all_states)
        self._atom_notifier: notifier_module.Notifier = notifier_module.RestrictedNotifier(
            all_states.union(states.INCIDENTS)
        )
        self._clock: clocks.Clock = self._settings["clock"] or clocks.StoreClock()
        self._storage = storage_module.Storage(self._flow_detail, self._backend)
        if self._settings["payloads"] is not None:
            self._storage.payloads = _payloads.opened(self._settings["payloads"])
        self._durability: str = self._settings["durability"]
        self._ownership = _ownership.Ownership(
            self._storage,
            self._clock,
            on_busy=self._settings["on_busy"],
            lease_seconds=self._settings["lease"],
        )
        self._compilation: compilation_module.Compilation | None = None
        self._preparation = _preparation.Preparation(
            self._storage,
            migrate=self._settings["migrate"],
            inject_transient=self._settings["inject_transient"],
        )
        self._in_use: dict[str, object] = {}  # the current run or reset
        # Reentrant, because a signal handler of the same thread may suspend.
        self._state_lock = RLock()
        # Requests for a run that is being prepared; None: no run is being prepared.
        self._early: _EarlyRequests | None = None
        self._run: run_module.Run | None = None
        self._task_executor = self._make_executor()
        self._in_process = getattr(self._task_executor, "in_process", False)
        self._local_tasks: composite.LocalTasks | None = None
        self._received: signals_and_sleeps.ReceivedSignals | None = None
        self._gates: chain.GateChain | None = None
        #: Name and quota of the limit of the flow itself if it had a permit in the latest run.
        self.flow_limit: tuple[str, Quota] | None = None
        self._parking: control.Parking | None = None
        #: Includes an executor for local tasks if the flow has any.
        self._running_executor: calls.TaskExecutor = self._task_executor

    @abc.abstractmethod
    def _make_executor(self) -> calls.TaskExecutor:
        """Return the executor of this engine's tasks, created from its options. Called once."""

    def _check_tasks(self, plan: plan_module.Plan) -> None:  # noqa: B027  (a default)
        """Check that the executor can run all tasks.

        :raises CompilationFailure: if it cannot run some; the text names them.
        """

    @classmethod
    def known_options(cls) -> frozenset[str]:
        return frozenset(cls.OPTIONS)

    @classmethod
    def read_options(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all options of this kind; values from a URI are strings.

        :raises ValueError: if an option is unknown or its value is not allowed.
        :raises TypeError: if a value has a wrong type.
        """
        return options_module.read(cls.__name__, cls.OPTIONS, given)

    @property
    def flow(self) -> Any:
        return self._flow

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that were given to the constructor."""
        return self._options

    @property
    def notifier(self) -> notifier_module.Notifier:
        """Notifier of the state changes of the flow."""
        return self._notifier

    @property
    def atom_notifier(self) -> notifier_module.Notifier:
        """Notifier of the state changes of the atoms.

        Callbacks registered for an event of `states.INCIDENTS` receive that event too.
        """
        return self._atom_notifier

    @property
    def storage(self) -> storage_module.Storage:
        """The storage of the flow: results, failures, states, histories."""
        return self._storage

    @property
    def compilation(self) -> compilation_module.Compilation | None:
        """The compiled flow; None before `compile`."""
        return self._compilation

    @property
    def executor(self) -> calls.TaskExecutor:
        return self._task_executor

    @property
    def difference(self) -> _differences.Difference | None:
        """Differences between the flow and the records of an earlier run, or None.

        Available after `compile`; `prepare` acts on it.
        """
        compiled = self._compilation
        return self._preparation.difference(None if compiled is None else compiled.plan)

    @property
    def statistics(self) -> dict[str, Any]:
        """Figures of the current or latest run; empty before the first, or if not gathered.

        - `active_for`: seconds from the first state of the loop to the last, or until now;
        - `seconds_per_state`: the part of each of `resuming`, `scheduling`, `waiting`, `analyzing`;
        - `completed`: number of executions and reversions that ended;
        - `incomplete`: number under way; `awaiting`: number ready to start;
        - `withdrawn`: number submitted and withdrawn before they started;
        - `discarded_failures`: number of failures after the run was already over.
        """
        run = self._run
        if run is None or not self._settings["gather_statistics"]:
            return {}
        return run.statistics()

    def _compiled(self, what: str) -> compilation_module.Compilation:
        if self._compilation is None:
            raise exceptions.InvalidState(f"An engine must be compiled before it is {what}")
        return self._compilation

    def compile(self) -> None:
        """Compile the flow into a plan; later calls do nothing.

        :raises CompilationFailure: if the flow is invalid (`Duplicate` names, ...).
        """
        if self._compilation is not None:
            return
        plan = compiler.compile(self._flow)
        compilation = compilation_module.Compilation(plan)
        self._local_tasks = _atom_selection.local_tasks(
            compilation.plan, self._settings["local_tasks"]
        )
        if self._local_tasks is not None:
            wait_nodes = [
                node
                for node, item in enumerate(compilation.plan.items)
                if isinstance(item, WaitingTask)
            ]
            if wait_nodes or compilation.has_workflows:
                self._received = signals_and_sleeps.ReceivedSignals(
                    wait_nodes, self._flow_detail.uuid, self._backend
                )
        self._check_tasks(compilation.plan)
        if self._local_tasks is not None and not self._in_process:
            # Local tasks run in this process with every kind of executor.
            local = executors.ThreadTaskExecutor(limit=self._settings["timelimit"])
            self._running_executor = composite.CompositeExecutor(local, self._task_executor)
        self._compilation = compilation

    def prepare(self) -> None:
        """Create missing records of atoms, and reset a flow that was reverted.

        If the flow has a command that runs it again (`operations.request`), this carries it out.

        Later calls only reset such a flow. Before anything is written, differences between the flow
        and the records of an earlier run are logged, and passed to the option `migrate`.

        :raises IncompatibleVersion: if an atom was recorded with another major version and
            `migrate` does not decide about it.
        :raises Duplicate: if an atom was recorded as the other kind (task or retry).
        :raises InvalidState: before `compile`; or if another engine ended the flow in FAILURE or
            REVERTED after this engine read it; or if the command cannot be carried out.
        :raises FlowBusy: if another engine runs the flow. With `on_busy='wait'` this waits for that
            engine, until `suspend` ends the wait.
        :raises StorageFailure: if the records cannot be written.
        """
        plan = self._compiled("prepared").plan
        if (
            self._preparation.is_finished
            and self._storage.get_flow_state() != states.REVERTED
            and self._request is None
        ):
            return
        opened = scopes.Scopes()
        try:
            with contextlib.ExitStack() as holding:
                if self._ownership.held is None:
                    owned = self._ownership.owned(
                        momentary=True, check_state=self.check_state, carries_out_reruns=True
                    )
                    holding.enter_context(opened.add(owned))
                with opened.add(self._storage.writer.batch()):
                    if not self._preparation.is_finished:
                        self._prepare(plan)
                    if self._request is not None:
                        self._carry_out(self._request)
                    if self._storage.get_flow_state() == states.REVERTED:
                        self._rerun("prepared").retry()
        finally:
            opened.close()

    @property
    def _request(self) -> persistence.FlowCommand | None:
        """The command of the flow that runs it again and is not carried out yet, or None."""
        held_lease = self._ownership.held
        command = None if held_lease is None else held_lease.lease.command
        return command if command is not None and command.reruns_flow else None

    def _carry_out(self, command: persistence.FlowCommand) -> None:
        """Carry out a command that runs the flow again, and delete it, in one write.

        A command that the state of the flow does not allow is deleted.

        :raises StateRefused: if the flow does not run for this reason, or because the command was
            withdrawn.
        """
        storage, held_lease = self._storage, self._ownership.held
        assert held_lease is not None
        state = storage.get_flow_state()
        try:
            refusal = self._rerun("prepared").carry_out(command)
        except exceptions.InvalidState as error:
            storage.writer.drop_pending()
            raise _ownership.StateRefused(str(error)) from error
        held_lease.lease = dataclasses.replace(held_lease.lease, command=None)
        if refusal is not None:
            LOG.warning("Flow %r is not %s: %s", storage.flow_name, command.describe(), refusal)
            if state in states.FLOW_ENDED or storage.flow_detail.is_suspended_by_command:
                raise _ownership.StateRefused(refusal)

    def _store_defaults(self) -> None:
        """Add the defaults of workflows to the inputs of a new flow, so that they do not change."""
        compiled = self._compiled("stored")
        if compiled.has_workflows:
            self._storage._add_defaults(_preparation.workflow_defaults(compiled.plan))

    def _inject_inputs(self, values: Mapping[str, Any]) -> None:
        try:
            self._storage.inject(values)
        except exceptions.FlowBusy:
            if not self._ownership.waits:
                raise
            # Injected by the run, which waits for the lease.
            self._preparation.inputs = values

    def _prepare(self, plan: plan_module.Plan) -> None:
        atoms = list(_preparation.atoms_in_order(plan))
        self._preparation.compare(atoms)
        # Its engine died during a run: this engine takes it over.
        left_running = self._storage.get_flow_state() in states.FLOW_RUNNING
        if left_running:
            self._change_state(states.RESUMING)
        self._preparation.create(plan, atoms)
        if left_running:
            self._change_state(states.SUSPENDED)
        self._preparation.finish()

    def validate(self) -> None:
        """Check that all required values and databases are provided; this changes nothing.

        :raises MissingDependencies: if an atom requires a value that nothing provides.
        :raises NotFound: if the database of a task is not registered in this process.
        :raises InvalidState: before `prepare`.
        """
        self._compiled("validated")
        if not self._preparation.is_finished:
            raise exceptions.InvalidState("An engine must be prepared before it is validated")
        self.check_inputs()
        databases = _atom_selection.transactions(
            self._compiled("validated").plan, in_process=self._in_process, local=self._local_tasks
        )
        if databases:
            # Loaded here, because most flows need no database.
            object_names.load("wbengine._transactions.registered:check")(databases)

    def check_inputs(self) -> None:
        """Do the checks of `validate` before anything of the flow is stored.

        :raises MissingDependencies: if an atom requires a value that nothing provides.
        :raises InvalidState: before `compile`.
        """
        plan = self._compiled("checked").plan
        error = _preparation.missing(self._flow, plan, self._storage)
        if error is not None:
            raise error

    def run(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Run the flow to an end state (SUCCESS, FAILURE, REVERTED), or to SUSPENDED.

        A flow that was suspended or lost its engine continues from there. A flow in SUCCESS runs
        only after `reset`; one that was reverted starts from the beginning; one in FAILURE
        continues, except with `never_resolve`: then it stays in FAILURE (see `reset`).

        :param timeout: maximum seconds of each single wait of the loop; not a limit for the run.
        :param deadline: seconds from this call. After them nothing more starts, running tasks
            finish, and everything is reverted (nothing with `never_resolve`). A flow that is
            already being reverted as a whole, or has ended when the engine checks the time, is not
            affected.
        :raises DeadlineExceeded: if the deadline passed; its `cause` is the failure of the flow.
        :raises Cancelled: if `cancel` was called; its `cause` is the failure of the flow.
        :raises ExecutionFailure: if the engine is already running.
        :raises InvalidState: if another engine ended the flow in FAILURE or REVERTED after this
            engine read it; nothing was changed. An engine that is loaded afterwards can run it.
        :raises FlowBusy: if another engine runs the flow; nothing was changed. With
            `on_busy='wait'` this waits for the other engine, at most until `deadline`; `suspend`
            ends the wait.
        :raises LeaseLost: if another engine took over the flow, or it was deleted, during the run.
        :raises StorageFailure: if the store cannot be written; see the class.
        :raises TypeError: if `timeout` or `deadline` is not a number.
        :raises ValueError: if one of them is negative or NaN.
        :raises Exception: the failure of the flow: a single one as it is, several as one
            `WrappedFailure`; also the exceptions of `compile`, `prepare` and `validate`. Nothing is
            raised after a suspension.

        `KeyboardInterrupt`, `SystemExit` and all others that are not `Exception` suspend the flow
        and leave `run`, after the tasks that run elsewhere ended (`detached` and `async` tasks are
        left to the next run). This applies to interruptions in this thread, in a retry controller,
        and in a task on this host (in a child process: only the first two). The interrupted atom
        stays RUNNING or REVERTING, and the next run executes it again. On a worker an interruption
        is the failure of the task.
        """
        self._drive(timeout, deadline, deque())

    async def arun(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Run the flow like `run`, in a separate thread, while other coroutines continue.

        Cancelling this suspends the flow, waits for running tasks, and only then raises
        `CancelledError`; the next `run` or `arun` continues the flow.

        :raises BaseException: as `run`.
        """
        early_requests: _EarlyRequests = deque()

        def suspend() -> None:
            early_requests.append(
                control.SuspendRequest()
            )  # for a run whose preparation has not started
            with contextlib.suppress(exceptions.InvalidState):  # not compiled yet
                self.suspend()

        await _async_run.in_thread(lambda: self._drive(timeout, deadline, early_requests), suspend)

    def _drive(
        self, timeout: float | None, deadline: float | None, early_requests: _EarlyRequests
    ) -> None:
        due, opened = self._deadline_time(timeout, deadline), scopes.Scopes()
        try:
            with opened.add(self._session(due, deadline, early_requests, opened)) as run:
                if run is None:
                    return
                for _ in run.run_iter(timeout, due, measure=self._settings["gather_statistics"]):
                    pass
        finally:
            opened.close()
        # Outside of generators, which would replace a StopIteration by a RuntimeError.
        _flow_errors.raise_failures(run, self._storage, deadline)

    def run_iter(
        self, timeout: float | None = None, *, deadline: float | None = None
    ) -> Generator[str, Any, None]:
        """Run the flow like `run`, and yield each state of the run loop, the end state last.

        The run starts when the first state is requested. `send(True)` suspends the flow. `close()`
        and the deletion of the iterator also suspend it, wait for running tasks, and raise no
        failure of the flow. `throw()` ends the run with FAILURE and raises the given exception; the
        next run continues the flow.

        :raises Exception: as `run`; for invalid `timeout` and `deadline` at the call.
        """
        return self._iterate_states(timeout, deadline, self._deadline_time(timeout, deadline))

    def _deadline_time(self, timeout: float | None, deadline: float | None) -> float | None:
        check_seconds("timeout", timeout)
        check_seconds("deadline", deadline)
        return None if deadline is None else self._clock.monotonic() + deadline

    def _iterate_states(
        self, timeout: float | None, deadline: float | None, due: float | None
    ) -> Generator[str, Any, None]:
        closing, opened = False, scopes.Scopes()
        try:
            with opened.add(self._session(due, deadline, deque(), opened)) as run:
                if run is None:
                    yield states.SUSPENDED
                    return
                measure = self._settings["gather_statistics"]
                for state in run.run_iter(timeout, due, measure=measure):
                    if closing:
                        continue
                    try:
                        if (yield state):
                            self.suspend()
                    except GeneratorExit:
                        closing = True
                        self.suspend()
        finally:
            opened.close()
        if not closing:
            _flow_errors.raise_failures(run, self._storage, deadline)

    @scopes.scope
    def _session(
        self,
        due: float | None,
        deadline: float | None,
        early_requests: _EarlyRequests,
        opened: scopes.Scopes,
    ) -> Iterator[run_module.Run | None]:
        """Enclose the loop of one run; the caller drives the yielded run to its end.

        Requests that arrive during the preparation are added to `early_requests`. Yields None if
        the run was suspended while it waited for another owner, or if the flow stays suspended. The
        caller closes `opened` afterwards.
        """
        refusal = exceptions.ExecutionFailure("The engine is already running")
        with opened.add(self._exclusive(refusal)):
            self._early = early_requests
            self.compile()
            with contextlib.ExitStack() as ownership_stack:
                try:
                    owned = self._ownership.owned(
                        due,
                        deadline,
                        early_requests,
                        check_state=self.check_state,
                        carries_out_reruns=True,
                    )
                    ownership_stack.enter_context(opened.add(owned))
                except _ownership.WaitEnded:
                    for request in early_requests:
                        if isinstance(request, control.CancelRequest):
                            raise self._cancelled_early(request.reason) from None
                    yield None
                    return
                if self._stays_suspended():
                    yield None
                    return
                with opened.add(self._storage.writer.batch()):
                    self.prepare()
                    self.check_state = None
                    self.validate()
                    self._preparation.save_outline(self._compiled("run"))
                    run = self._make_run()
                    executing = self._executing(run, opened)
                    # Ensures that `_enter_end_state` is called if an interruption arrives while the
                    # executor stops.
                    with contextlib.ExitStack() as last, opened.add(executing):
                        yield run
                        last.callback(self._enter_end_state, run)
                    self._suspend_children()

    def _stays_suspended(self) -> bool:
        held_lease, flow = self._ownership.held, self._flow_detail
        if held_lease is None or not flow.is_suspended_by_command:
            return False
        command = held_lease.lease.command
        if command is not None and command.what != _commands.SUSPEND:
            return False
        if command is not None and (self.keeps_suspended or flow.was_suspended_by(command)):
            held_lease.executed_command = command  # by an engine that died before it deleted it
        if self.keeps_suspended:
            self._suspend_children()
        return self.keeps_suspended

    @scopes.scope
    def _exclusive(self, refusal: Exception) -> Iterator[None]:
        """Allow one run or reset at a time; raise `refusal` during another one.

        The mark is specific to this call, so it is also removed after an interruption directly
        behind `setdefault`.
        """
        mark = object()
        try:
            if self._in_use.setdefault("now", mark) is not mark:
                raise refusal
            yield
        finally:  # without a call: an interrupt could come in it
            if "now" in self._in_use and self._in_use["now"] is mark:
                self._early = None
                del self._in_use["now"]

    def _enter_end_state(self, run: run_module.Run) -> None:
        """Enter the final state of the run, unless a late interruption suspended the flow."""
        if self._storage.get_flow_state() == states.SUSPENDED:
            return
        plan = self._compiled("run").plan
        self._change_state(run.state, *_flow_errors.in_short(run, self._storage, plan))

    def _cancelled_early(self, reason: str | None) -> exceptions.ExecutionFailure:
        given_up = control.GivenUp(models.CANCELLED, reason)
        return given_up.error(
            f"Flow {self._storage.flow_name!r}, which another process runs and which was"
            " not changed,"
        )

    @scopes.scope
    def _executing(self, run: run_module.Run, opened: scopes.Scopes) -> Iterator[None]:
        try:
            self._running_executor.start()  # if it fails, the flow is unchanged
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt: it may have started
                self._running_executor.stop()
            raise
        try:
            self._check_values()
            self._begin_run()
        except BaseException as error:
            self._leave_unchanged(run, error)
            self._running_executor.stop()
            raise
        try:
            self._change_state(states.RUNNING)
            self._clock.attach(run.inbox, run.is_busy)
            self._attach_run(run)
            if self._ownership.held is not None:
                self._ownership.held.begin_run(self._execute_command)
            if self._durability != saving.EACH:
                # Executors identify atoms by their records: these must survive a crash.
                self._storage.writer.flush()
            yield
        except BaseException as error:
            if not self._leave_unchanged(run, error):
                self._abort(run, error)
            raise
        finally:
            try:
                self._stop(run)
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt; each step can be repeated
                    self._stop(run)
                raise

    def _check_values(self) -> None:
        """Check that this process can read all values, so that no task fails for want of them.

        :raises PayloadUnavailable: if it cannot read large ones.
        :raises StorageFailure: if they are encrypted, and it has no keys.
        """
        if self._flow_detail.meta_value(_sealed_fields.MARK) is not None:
            _sealed_fields.check_opened(self._flow_detail)
        if self._storage.payloads is None and _references.IN_USE:
            for record in self._flow_detail:
                if isinstance(record, models.TaskDetail) and record.state != states.PENDING:
                    _payloads.loaded(None, record.held_results, f"result of {record.name!r}")

    def _begin_run(self) -> None:  # noqa: B027  (a default, not a stub)
        """Begin with the started executor. If this raises, the flow is unchanged."""

    def _stop(self, run: run_module.Run) -> None:
        run.stop_signal.end()
        self._clock.detach(run.inbox)
        self._running_executor.stop()
        if self._gates is not None:
            self.flow_limit = self._gates.flow_limit
            is_suspended = run.state == states.SUSPENDED
            self._gates.close(self._parking.parked if self._parking and is_suspended else None)
            self._gates = None
        run.stats.ended = self._clock.monotonic()

    def _leave_unchanged(self, run: run_module.Run, error: BaseException) -> bool:
        """Leave the flow unchanged if another engine can continue it and this one cannot.

        This applies if the lease is lost, and if the store cannot be written while the executor
        outlives this engine: it stores the results of tasks that end now for the next run. Return
        True in these cases.
        """
        held_lease = self._ownership.held
        if isinstance(error, exceptions.LeaseLost) and held_lease is not None:
            held_lease.lose(error)
        if held_lease is not None and held_lease.error is not None:
            # No notification: this engine does not own the flow any more.
            run.stop_signal.disown()
            self._storage.flow_detail.state = states.FAILURE
        elif self._storage.writer.is_failing and self._running_executor.survives_engine:
            run.stop_signal.disown()
            self._change_state(states.FAILURE, *_flow_errors.Reason.of(error), saved=False)
        else:
            return False
        self._storage.writer.drop_pending()
        return True

    def _abort(self, run: run_module.Run, error: BaseException) -> None:
        """Leave a valid state behind after any exception in the loop.

        An interruption (`KeyboardInterrupt`, `SystemExit`) suspends the flow. Detached tasks are
        not waited for; the next run collects them.
        """
        try:
            if not isinstance(error, Exception):
                self._storage.mark_all()
            run.abandon()
            self._running_executor.abandon_detached()
            self._running_executor.finish()
            self._running_executor.stop()
            run.collect()
        except exceptions.StorageFailure as problem:
            if not isinstance(error, exceptions.StorageFailure):
                raise
            LOG.warning(
                "The final state of flow %r is not saved yet: %s", self._storage.flow_name, problem
            )
        finally:  # also after a second Ctrl-C, or if a listener raises SystemExit
            difference = _flow_errors.difference_of(error, self._storage.code)
            is_lost = isinstance(error, exceptions.PayloadUnavailable)
            is_blocked = difference is not None and (self.suspends_on_difference or is_lost)
            if isinstance(error, Exception) and not is_blocked:
                self._change_state(states.FAILURE, *_flow_errors.Reason.of(error), saved=False)
            else:
                reason = None
                if difference is not None:
                    self._storage.flow_meta[models.BLOCKED] = difference
                    reason = _history.BLOCKED
                try:
                    self._change_state(states.SUSPENDING, reason, saved=False)
                finally:
                    self._change_state(states.SUSPENDED, saved=False)

    def _make_run(self) -> run_module.Run:
        compiled = self._compiled("run")
        events: inbox.Inbox = self._clock.queue()

        def wake(at_once: bool = False) -> None:
            events.put(inbox.ProgressReported())

        on_progress: Callable[..., None] = wake
        executor = self._running_executor
        held_lease, saver = self._ownership.held, saving.Saver(executor, self._clock)
        if held_lease is not None and self._durability != saving.END:
            early_flush = saving.EarlyFlush(
                self._storage.writer, wake, self._clock, immediate=executor.immediate
            )
            on_progress, held_lease.on_tick = early_flush, early_flush.on_tick
        lifecycle = self._make_lifecycle(on_progress)
        lifecycle.undo_begun_waits()
        scheduler = scheduler_module.Scheduler(
            compiled.plan,
            _preparation.saved_states(self._storage),
            _preparation.nodes_not_owned(self._storage),
        )
        if held_lease is not None:
            saver = saving.Saver(
                executor, self._clock, self._storage.writer, self._durability, held_lease.check
            )
            # Before the gates read the pauses, so that a later change is not lost.
            held_lease.on_pauses = lambda pauses: events.put(inbox.PausesChanged(pauses))
        parking = self._parking = None
        if self.park_after is not None:
            parking = self._parking = control.Parking(
                lambda: self._suspend(_history.PARKED), self.park_after
            )
        gates = self._gates = self._make_gates(compiled, lifecycle, events)
        run = run_module.Run(
            compiled.plan,
            scheduler,
            lifecycle,
            saver,
            executor,
            events,
            gates,
            never_resolve=self._settings["never_resolve"],
            defer_reverts=self._settings["defer_reverts"],
            clock=self._clock,
            parking=parking,
            workflows=self._make_workflows(lifecycle, wake) if compiled.has_workflows else None,
        )
        if self._received is not None:
            self._received.on_new = lambda: events.put(inbox.SignalsReceived())
            if held_lease is not None:
                held_lease.on_signals = self._received.add
                held_lease.awaits_signals = gates.is_awaiting_signal
        if held_lease is not None:
            held_lease.on_lost = run.stop_signal.disown
        return run

    def _make_gates(
        self,
        compiled: compilation_module.Compilation,
        lifecycle: atom_lifecycle.AtomLifecycle,
        events: inbox.Inbox,
    ) -> chain.GateChain:
        permit_gate, pauses, executor = None, None, self._running_executor
        timers = deadlines.Timers()
        held_lease = self._ownership.held
        if held_lease is not None:
            # A flow that was parked for a pause is continued when it has changed.
            pauses = held_lease.pauses = _lease_renewer.of_process().pauses(
                held_lease.backend, is_fresh=bool(self._flow_detail.paused_by)
            )
            lifecycle.store_pauses(())
        if compiled.limits or compiled.has_workflows:
            # Imported here, because most flows have no limits.
            from wbengine.engines import _permit_setup

            place = self._settings["limits"] or self._backend
            epoch = 0 if held_lease is None else held_lease.lease.epoch
            permit_gate = _permit_setup.make_permit_gate(
                compiled,
                lifecycle,
                events,
                self._storage,
                place,
                epoch,
                self._settings["lease"],
                timers,
                self._clock,
                immediate=executor.immediate,
                park_after=self.park_after,
            )
        return _gate_setup.make_gates(
            compiled,
            lifecycle,
            events,
            self._clock,
            executor,
            timers,
            pauses=pauses,
            received=self._received,
            make_children=self._make_children if compiled.has_workflows else None,
            permit_gate=permit_gate,
        )

    def _make_children(self) -> Any:
        # The module loads flows, so it imports this one.
        make = object_names.load("wbengine.engines._children:ChildFlows")
        store = self._child_memory if self._backend is None else self._backend
        limit = self._concurrency_limit
        return make(self._storage, self._received, self._clock, self._of_child, limit, store)

    @functools.cached_property
    def _child_memory(self) -> Any:
        return object_names.load("wbengine.engines._child_memory:ChildMemory")()

    def _concurrency_limit(self) -> str | None:
        """Return the name of the limit of concurrent flows for which the flow has a permit."""
        name, quota = (None if self._gates is None else self._gates.flow_limit) or (None, None)
        return name if quota is not None and quota.concurrency is not None else None

    def _of_child(
        self, flow: Any, flow_detail: models.FlowDetail, backend: persistence.Backend
    ) -> Engine:
        """Return an engine for a child flow, with the kind and the options of this one.

        It waits for another owner of the flow, which may be a process that died.
        """
        options = {**self._options, "on_busy": _ownership.WAIT}
        return type(self)(flow, flow_detail, backend, options)

    def _suspend_children(self) -> None:
        """Suspend the children of a flow that a command suspended, before its lease is released.

        The command stays in the store until then, so that the next engine repeats this.
        """
        flow = self._flow_detail
        if flow.is_suspended_by_command and self._compiled("suspended").has_workflows:
            self._make_children().suspend()

    def _make_workflows(
        self, lifecycle: atom_lifecycle.AtomLifecycle, wake: Callable[[], object]
    ) -> manager.Workflows:
        # Imported here, because most flows have no workflows.
        from wbengine._runtime.workflows import manager, step_records

        records = step_records.StepRecords(self._storage, lifecycle)
        return manager.Workflows(records, wake, self._clock.time)

    def _make_lifecycle(self, on_progress: Callable[..., None]) -> atom_lifecycle.AtomLifecycle:
        return atom_lifecycle.AtomLifecycle(
            self._compiled("run").plan,
            self._storage,
            self._atom_notifier,
            in_process=self._in_process,
            on_progress=on_progress,
            executor=self._running_executor,
            local_tasks=self._local_tasks,
            keep_logs=self._settings["keep_logs"],
            waiting=() if self._received is None else self._received.nodes,
            clock=self._clock,
        )

    def suspend(self) -> None:
        """Suspend the run: nothing more starts, running tasks finish, then the flow is SUSPENDED.

        May be called from any thread, listener, task or signal handler, repeatedly. Returns without
        waiting. A request during the preparation of a run is stored for it. Without a run this does
        nothing. A flow may still reach its end instead.

        :raises InvalidState: before `compile`, unless `run` was called.
        """
        self._suspend()

    def _suspend(self, reason: str | None = None) -> bool:
        """Suspend the run. Return False if there is no run or it was already over."""
        if self._keep_request(control.SuspendRequest(reason)):
            return True
        self._compiled("suspended")
        if self._ownership.wake():
            return True  # ends the wait for the lease in `prepare` or `reset`
        if self._backend is not None and self._storage.writer.lease is None:
            return False  # a stored state of a run belongs to a run that died
        with self._state_lock:
            # Read with the state, so that a later run is not suspended.
            run = self._run
            moved, old_state = self._storage.move_flow(
                states.SUSPENDING, self._clock.time(), reason
            )
            if not moved and old_state == states.SUSPENDING and reason not in _NO_COMMAND:
                self._storage.explain_flow_state(self._clock.time(), reason)
        if moved:
            self._notify_state(states.SUSPENDING, old_state)
            if run is not None:
                run.stop_signal.suspend()
        return moved or old_state == states.SUSPENDING

    def paused_tasks(self) -> Mapping[str, int]:
        """Return the number of ready tasks and items of Maps whose type is paused, by type.

        May be called from any thread.
        """
        gates = self._gates
        return {} if gates is None else gates.paused_counts()

    @property
    def parked(self) -> control.Parked | None:
        """Condition that ends the parking of the latest run; None: it was not parked."""
        if self._parking is None or not self._flow_detail.is_parked:
            return None
        return self._parking.parked

    def cancel(self, *atoms: Any, reason: str | None = None) -> bool:
        """Cancel the run or some of its atoms: nothing more starts, and everything is reverted.

        Without `atoms`, all running tasks are cancelled. With `atoms` (tasks, or flows and retries
        with everything inside, or names) only these are, other running tasks finish, and nothing
        happens if all of them have ended. A running task can read `task.cancelled`; a child process
        is killed after `cancel_grace` seconds. A task that ends for this reason fails with
        `Cancelled`, without a retry; a task that succeeds nevertheless is reverted with the others.
        Reversions continue, and reversions that failed in an earlier run run again. A flow that
        reaches its end nevertheless is not affected. With `never_resolve` nothing is reverted.

        `run` raises `Cancelled` with the `reason`, which is stored. If the run dies or is suspended
        while it reverts, the next run, of any engine, continues to revert.

        May be called from any thread, listener, task or signal handler, repeatedly. Returns without
        waiting.

        :returns: False without a run. (`run(deadline=0)` reverts a suspended flow.)
        :raises InvalidState: before `compile`.
        :raises NotFound: if the flow has no such task, retry or flow.
        :raises TypeError: if an atom has another type, or the reason is not a string.
        """
        plan = self._compiled("cancelled").plan
        if not isinstance(reason, str | None):
            raise TypeError(f"reason must be a str or None, got {reason!r:.80}")
        nodes = _atom_selection.nodes_of(plan, atoms) if atoms else None
        request = control.CancelRequest(nodes, reason)
        if self._keep_request(request):
            return True
        run = self._run
        return run is not None and run.stop_signal.cancel(request)

    @property
    def is_cancelled(self) -> bool:
        """Whether the flow was cancelled, also before and after the reversion."""
        run = self._run
        if run is not None and run.stop_signal.requests:
            return True
        given_up = None if run is None else run.end_reason
        given_up = given_up or control.read_given_up(self._storage.flow_meta)
        return given_up is not None and given_up.cancelled

    def signal(self, name: str, value: Any = None) -> int:
        """Send a signal to the flow, for tasks that wait for it (`task.WaitFor`) now or later.

        From any thread, during a run or not; once for each name. A flow with a workflow accepts all
        names, and several signals of each name. With a backend, the signal is stored with the flow.

        :returns: the number of the signal among those of its name: 1, or more for a flow with a
            workflow.
        :raises NotFound: if no task of the flow waits for this signal; the text suggests a name.
        :raises InvalidState: if the flow has ended.
        :raises Duplicate: if this signal was sent before, unless the flow has a workflow.
        :raises NotEncodable: if the value cannot be encoded, or is too long.
        :raises TypeError, ValueError: if the name is not allowed.
        :raises ValueError: if the flow waits for the signal, and its task expects another type.
        :raises CompilationFailure: if the flow is invalid.
        """
        self.compile()
        new_signal = signals.Signal.of(
            name, value, self._clock.time(), self._storage.payloads, self._flow_detail.uuid
        )
        waiting = self._received
        outline = None if waiting is None else self._compiled("signalled").outline
        expected = [] if outline is None else outline.signals
        any_name = outline is not None and outline.accepts_any_signal
        if waiting is not None and self._backend is not None:
            uuid = self._flow_detail.uuid
            stored = _lease_renewer.send_signal(
                self._backend, uuid, new_signal, expected, any_name=any_name
            )
            waiting.add([stored])
            return stored.number
        flow = self._storage.flow_name
        if waiting is None or not (any_name or name in expected):
            raise exceptions.NotFound(
                f"Flow {flow!r} has no task that waits for signal"
                f" {name!r}{object_names.hint(name, expected)}"
            )
        if (state := self._storage.get_flow_state()) in states.FLOW_ENDED:
            raise exceptions.InvalidState(
                f"Flow {flow!r} has ended in {state}: signal {name!r} was not sent"
            )
        waits = self._flow_detail.waits_for
        if any(wait.expects(name) for wait in waits):
            # Loaded here, because most waits expect no type.
            check = object_names.load("wbengine.persistence._signal_types:check")
            check(new_signal, waits, waiting.all())
        if any_name:
            return waiting.add_next(new_signal).number
        if not waiting.add([new_signal]):
            # Loaded here, because few signals are sent twice.
            find_numbers = object_names.load(
                "wbengine.persistence._sent_signals:numbers_after_discarded"
            )
            for number in find_numbers(name, self._flow_detail):
                if waiting.add([new_signal.numbered(number)]):
                    return int(number)
            raise exceptions.Duplicate(
                f"Flow {flow!r} already has signal {name!r}: its first value counts"
            )
        return new_signal.number

    def _keep_request(self, request: control.CancelRequest | control.SuspendRequest) -> bool:
        """Keep a request for a run that is being prepared, and end its wait for the lease.

        Return False if no run is being prepared.
        """
        with self._state_lock:
            early_requests = self._early
            if early_requests is not None:
                early_requests.append(request)
        if early_requests is None:
            return False
        self._ownership.wake()
        return True

    def _execute_command(self, command: persistence.FlowCommand) -> bool:
        if command.reruns_flow:
            return False  # The next engine carries it out.
        LOG.info(
            *("Flow %r is being %s", self._storage.flow_name, command.describe()),
            extra={"flow": self._storage.flow_uuid},
        )
        if command.what == _commands.SUSPEND:
            return self._suspend(command.describe())
        return self.cancel(reason=command.explanation)

    def _attach_run(self, run: run_module.Run) -> None:
        with self._state_lock:
            self._run = run
            early_requests, self._early = self._early, None
        while early_requests:  # The cancellation of `arun` may add one meanwhile.
            request = early_requests.popleft()
            if isinstance(request, control.CancelRequest):
                run.stop_signal.cancel(request)
            else:
                self._suspend(request.reason)

    def _change_state(
        self,
        state: str,
        reason: str | None = None,
        errors: str | None = None,
        *,
        saved: bool = True,
    ) -> bool:
        """Enter `state` and notify listeners, after a write if `saved` and durability demand it."""
        with self._state_lock:
            moved, old_state = self._storage.move_flow(state, self._clock.time(), reason, errors)
        if moved:
            if saved and self._durability == saving.EACH and len(self._notifier):
                self._storage.writer.flush()
            self._notify_state(state, old_state)
        return moved

    def _notify_state(self, state: str, old_state: str) -> None:
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

    def edit_fork(self, edits: Edits, step_results: Mapping[str, Any]) -> None:
        """Replace inputs and results of a new flow that inherited results. It is not stored yet.

        :param step_results: results of inherited steps, by uuid of the record.
        :raises NotFound, InvalidFormat, InvalidState, NotEncodable: as `reset`; then the flow must
            not be stored.
        """
        self.prepare()
        self._rerun("edited").edit_fork(edits, step_results)

    def check_edits(self, edits: Edits) -> None:
        """Check by the records whether these inputs and results can be replaced.

        `reset` also checks results that other tasks have used, and workflows in progress.

        :raises NotFound, InvalidFormat, InvalidState: as `reset`.
        """
        self.compile()
        self._rerun("edited").check_edits(edits, self._compiled("edited").outline.used_inputs)

    def reset(
        self,
        *,
        failed_only: bool = False,
        edits: Edits | None = None,
        reason: str | None = None,
    ) -> None:
        """Delete all results and failures, so that the next run starts from the beginning.

        Allowed in SUCCESS, FAILURE, REVERTED and SUSPENDED. Nothing is reverted, and the numbers of
        attempts keep increasing.

        :param failed_only: delete only failures, so that the next run executes the failed atoms
            again and then their successors: the way to continue after `never_resolve`.
        :param edits: inputs and results to replace, with `failed_only`.
        :param reason: text for the history of the flow.
        :raises ValueError: if `edits` is given without `failed_only`.
        :raises NotFound: if the flow has no such input or task.
        :raises InvalidFormat: if an input does not fit the annotation of its parameter.
        :raises InvalidState: before `prepare`, while the flow runs, if another engine ended it
            after this engine read it, or, with `failed_only`, if part of the flow was reverted or
            is to be, or a complete task or a recorded step has used a value of `edits`. In these
            cases nothing is changed.
        :raises FlowBusy: if another engine runs the flow (see `prepare`).
        """
        rerun = self._rerun("reset")
        if edits and not failed_only:
            raise ValueError("edits requires failed_only=True: without it, all tasks run again")

        def restart() -> None:
            states.check_flow_transition(self._storage.get_flow_state(), states.PENDING)
            if failed_only:
                rerun.retry_failed(reason, edits)
            else:
                rerun.restart(reason)

        self._change("reset", restart, self.check_state)

    def _change(
        self, verb: str, change: Callable[[], object], check_state: Callable[[str], object] | None
    ) -> None:
        """Change the records between two runs, in one write, while this engine owns the flow."""
        if not self._preparation.is_finished:
            raise exceptions.InvalidState(f"An engine must be prepared before it is {verb}")
        refusal = exceptions.InvalidState(f"The engine is running: it cannot be {verb}")
        opened = scopes.Scopes()
        try:
            owned = self._ownership.owned(
                momentary=True, check_state=check_state, refused_ends=states.FLOW_ENDED
            )
            with (
                opened.add(self._exclusive(refusal)),
                opened.add(owned),
                opened.add(self._storage.writer.batch()),
            ):
                self.prepare()
                change()
        finally:
            opened.close()

    def revert(self, *, reason: str | None = None, partial: bool = False) -> None:
        """Let the next run revert all complete atoms, in reverse order.

        Allowed in SUCCESS, and in FAILURE: reversions that failed run again. The request is stored:
        a later engine of the flow reverts it, too. The next run of a flow that had succeeded raises
        nothing if all is reverted. One of a flow that had failed raises its failure or, if the part
        that failed was reverted before, `Cancelled`.

        :param reason: text for the history of the flow.
        :param partial: revert a complete flow although it has complete tasks that are
            `irreversible`.
        :raises InvalidState: before `prepare`, while the flow runs, in other states, if a complete
            flow cannot be undone (see `partial`; or this code has no `revert` of a step that had
            one; or the time of `undo_until` has passed), or if another engine ended the flow after
            this engine read it. In these cases nothing is changed.
        :raises FlowBusy: if another engine runs the flow (see `prepare`).
        """
        rerun, at = self._rerun("reverted"), self._clock.time()
        command = _commands.FlowCommand(_commands.REVERT, reason, at=at, partial=partial)
        # Also before the preparation, which restarts a reverted flow.
        check_state = functools.partial(rerun.check, _commands.REVERT)
        self._change("reverted", functools.partial(rerun.revert, command), check_state)

    def plan_undo(self) -> UndoPlan:
        """Return what a reversion of the complete flow undoes, according to records and code.

        :raises InvalidState: before `compile`.
        """
        return self._rerun("planned").plan_undo(self._clock.time())

    def _rerun(self, what: str) -> _rerunning.Rerun:
        """Return the changes after which the flow runs again.

        :raises InvalidState: before `compile`; the text contains what the engine should do.
        """
        plan = self._compiled(what).plan
        # Imported here, because most flows run once.
        from wbengine.engines import _rerunning

        make_lifecycle = functools.partial(self._make_lifecycle, _do_nothing)
        return _rerunning.Rerun(
            self._flow, plan, self._storage, self._clock, make_lifecycle, self._put_pending
        )

    def _put_pending(
        self,
        lifecycle: atom_lifecycle.AtomLifecycle,
        reason: str | None,
        settled: persistence.FlowCommand | None,
    ) -> None:
        """Put the flow into PENDING in one write, which may also settle a command.

        :param lifecycle: delivers its notifications after the write.
        :raises InvalidState: if the flow has another command; nothing was written.
        """
        with self._state_lock:
            moved, old_state = self._storage.move_flow(states.PENDING, self._clock.time(), reason)
        if reason and not moved:
            self._storage.explain_flow_state(self._clock.time(), reason)
        if settled is not None:
            self._storage.writer.settle(settled)
        elif self._durability == saving.EACH:
            self._storage.writer.flush()
        lifecycle.deliver()
        if moved:
            self._notify_state(states.PENDING, old_state)


def _do_nothing() -> None:
    """Have no effect."""
