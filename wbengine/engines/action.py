"""The engine: wires plan, storage, scheduler, lifecycle, machine and executor.

This is the only module that knows all the parts.  Kinds of engines differ in one thing: the
executor that `_make_executor` gives them.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from wbengine import _clock, exceptions, states
from wbengine import invocation as calls
from wbengine import storage as storage_module
from wbengine._core import compiler, executors
from wbengine._core import inbox as inbox_module
from wbengine._core import lifecycle as lifecycle_module
from wbengine._core import machine as machine_module
from wbengine._core import plan as plan_module
from wbengine._core import scheduler as scheduler_module
from wbengine.engines import base, requirements
from wbengine.engines import compilation as compilation_module
from wbengine.persistence import base as persistence
from wbengine.persistence import models
from wbengine.types import failure as ft

__all__ = ["ActionEngine"]


class ActionEngine(base.Engine):
    """Runs a flow on an executor.

    Options: `never_resolve` (a failure is kept: nothing is retried or reverted), `defer_reverts` (a
    retry's REVERT asks the retry around it; the outermost one reverts everything),
    `inject_transient` (default True: what atoms inject is not written), `gather_statistics`
    (default True: seconds per state).
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset(
        {"never_resolve", "defer_reverts", "inject_transient", "gather_statistics"}
    )

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(flow, flow_detail, backend, options)
        self._never_resolve = self._flag("never_resolve", False)
        self._defer_reverts = self._flag("defer_reverts", False)
        self._inject_transient = self._flag("inject_transient", True)
        self._gather_statistics = self._flag("gather_statistics", True)
        self._clock = _clock.SYSTEM
        self._storage = storage_module.Storage(self._flow_detail, self._backend)
        self._compilation: compilation_module.Compilation | None = None
        self._prepared = False
        self._busy = threading.Lock()
        # Again by the same thread, when a signal's handler suspends.
        self._state_lock = threading.RLock()
        self._machine: machine_module.Machine | None = None
        self._began: float | None = None
        self._ended: float | None = None
        self._task_executor = self._make_executor()
        self._in_process = getattr(self._task_executor, "in_process", False)
        # Tasks marked `local` stay here, whatever the executor does with the others.
        self._crew = (
            self._task_executor
            if self._in_process
            else calls.Divided(executors.ThreadTaskExecutor(), self._task_executor)
        )

    @abc.abstractmethod
    def _make_executor(self) -> calls.TaskExecutor:
        """Make what runs this engine's tasks, from its options; called once, at construction."""

    def _flag(self, name: str, default: bool) -> bool:
        return base.flag(name, self._options.get(name, default))

    @property
    def storage(self) -> storage_module.Storage:
        return self._storage

    @property
    def executor(self) -> calls.TaskExecutor:
        """What runs this engine's tasks."""
        return self._task_executor

    @property
    def compilation(self) -> compilation_module.Compilation | None:
        """The compiled flow; None before `compile`."""
        return self._compilation

    @property
    def statistics(self) -> dict[str, Any]:
        machine, began = self._machine, self._began
        if machine is None or began is None or not self._gather_statistics:
            return {}
        ended = self._ended if self._ended is not None else self._clock.monotonic()
        figures = machine.figures
        spent = figures.seconds_per_state
        return {
            "seconds_per_state": {name.lower(): spent.get(name, 0.0) for name in _TIMED},
            "active_for": ended - began,
            "completed": figures.completed,
            "incomplete": machine.incomplete,
            "awaiting": machine.awaiting,
            "withdrawn": figures.withdrawn,
            "discarded_failures": figures.discarded,
        }

    # -- getting ready --------------------------------------------------------------------------

    def compile(self) -> None:
        if self._compilation is None:
            self._compilation = compilation_module.Compilation(compiler.compile(self._flow))

    def prepare(self) -> None:
        plan = self._compiled("prepared").plan
        if not self._prepared:
            # A flow that another process left RUNNING is taken over; else this changes nothing.
            self._change_state(states.RESUMING)
            atoms = list(_in_order(plan))
            self._storage.ensure_atoms(atoms)
            for atom in atoms:
                if atom.inject:
                    self._storage.inject_atom_args(
                        atom.name, atom.inject, transient=self._inject_transient
                    )
            self._storage.bind(plan, len(plan))
            self._change_state(states.SUSPENDED)
            self._prepared = True
        if self._storage.get_flow_state() == states.REVERTED:
            self._reset(plan.atoms())

    def validate(self) -> None:
        plan = self._compiled("validated").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is validated")
        error = requirements.missing(self._flow, plan, self._storage)
        if error is not None:
            raise error

    def _compiled(self, what: str) -> compilation_module.Compilation:
        if self._compilation is None:
            raise exceptions.InvalidState(f"An engine must be compiled before it is {what}")
        return self._compilation

    # -- running --------------------------------------------------------------------------------

    def run(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        due = self._due(timeout, deadline)
        with self._session() as machine:
            for _ in machine.run_iter(timeout, due, measure=self._gather_statistics):
                pass
        # Out here, and in no generator, a StopIteration is like any other exception.
        self._raise_failures(machine, deadline)

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
        with self._session() as machine:
            for state in machine.run_iter(timeout, due, measure=self._gather_statistics):
                if closing:
                    continue
                try:
                    if (yield state):
                        self.suspend()
                except GeneratorExit:
                    closing = True
                    self.suspend()
        if not closing:
            self._raise_failures(machine, deadline)

    @contextlib.contextmanager
    def _session(self) -> Iterator[machine_module.Machine]:
        """Everything around the loop of one run; whoever enters drives the machine to its end."""
        if not self._busy.acquire(blocking=False):
            raise exceptions.ExecutionFailure("The engine is running already")
        try:
            self.compile()
            self.prepare()
            self.validate()
            with self._storage.batch():
                machine = self._machine = self._make_machine()
                self._began, self._ended = self._clock.monotonic(), None
                # Also if an interruption comes while what ran it is stopped.
                with contextlib.ExitStack() as last, self._executing(machine):
                    yield machine
                    last.callback(self._change_state, machine.state)
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def _executing(self, machine: machine_module.Machine) -> Iterator[None]:
        self._crew.start()  # one that cannot start changes nothing of the flow
        try:
            self._change_state(states.RUNNING)
            yield
        except BaseException as error:
            self._abort(machine, error)
            raise
        finally:
            machine.brake.let_go()
            self._crew.stop()
            self._ended = self._clock.monotonic()

    def _abort(self, machine: machine_module.Machine, error: BaseException) -> None:
        """Leave a legal state behind, whatever happened in the loop.

        An interruption (`KeyboardInterrupt`, `SystemExit`) suspends: the next run goes on.
        """
        try:
            machine.abandon()
            self._crew.finish()
            self._crew.stop()
            machine.collect()
        finally:  # whatever else comes: a second Ctrl-C, a listener that exits
            if isinstance(error, Exception):
                self._change_state(states.FAILURE)
            else:
                try:
                    self._change_state(states.SUSPENDING)
                finally:
                    self._change_state(states.SUSPENDED)

    def _make_machine(self) -> machine_module.Machine:
        plan = self._compiled("run").plan
        inbox: inbox_module.Inbox = self._clock.queue()
        lifecycle = self._make_lifecycle(functools.partial(inbox.put, None))
        return machine_module.Machine(
            plan,
            scheduler_module.Scheduler(plan, self._saved_states()),
            lifecycle,
            self._storage,
            self._crew,
            inbox,
            never_resolve=self._never_resolve,
            defer_reverts=self._defer_reverts,
            clock=self._clock,
        )

    def _make_lifecycle(self, touched: Callable[[], None]) -> lifecycle_module.Lifecycle:
        return lifecycle_module.Lifecycle(
            self._compiled("run").plan,
            self._storage,
            self._atom_notifier,
            in_process=self._in_process,
            touched=touched,
        )

    def _saved_states(self) -> dict[int, tuple[str | None, str]] | None:
        """What earlier runs left, by node; None when there was none."""
        found = {
            node: (record.state, record.intention)
            for node, record in enumerate(self._storage.records)
            if record is not None
            and (record.state != states.PENDING or record.intention != states.EXECUTE)
        }
        if not found:
            return None
        for node, record in enumerate(self._storage.records):
            if record is not None:
                found.setdefault(node, (record.state, record.intention))
        return found

    def _raise_failures(self, machine: machine_module.Machine, deadline: float | None) -> None:
        if machine.state in (states.SUCCESS, states.SUSPENDED):
            return
        if machine.expired or lifecycle_module.DEADLINE_EXCEEDED in self._storage.flow_meta:
            raise self._too_late(machine, deadline if machine.expired else None)
        self._raise_what_stopped(machine)

    def _raise_what_stopped(self, machine: machine_module.Machine) -> None:
        """What kept atoms from being reverted, if anything did; else what failed.

        The former with the latter as its context: it happened while that was being handled.
        """
        stuck = self._storage.get_revert_failures().values()
        failed = self._storage.get_execute_failures().values()
        try:
            ft.Failure.reraise_if_any([*machine.problems, *failed])
        except BaseException:
            ft.Failure.reraise_if_any(stuck)
            raise
        ft.Failure.reraise_if_any(stuck)

    def _too_late(
        self, machine: machine_module.Machine, deadline: float | None
    ) -> exceptions.DeadlineExceeded:
        cause: BaseException | None = None
        try:
            self._raise_what_stopped(machine)
        except BaseException as error:
            cause = error
        given = "the time an earlier run was given" if deadline is None else f"{deadline:g} seconds"
        found = exceptions.DeadlineExceeded(
            f"Flow {self._storage.flow_name!r} did not end within {given}", cause
        )
        found.__cause__ = cause
        return found

    # -- from outside ---------------------------------------------------------------------------

    def suspend(self) -> None:
        self._compiled("suspended")
        with self._state_lock:
            # Of the same run as the state: a machine whose run is over must not hear of it.
            machine = self._machine
            moved, old_state = self._storage.change_flow_state(states.SUSPENDING)
        if moved:
            self._tell_state(states.SUSPENDING, old_state)
            if machine is not None:
                machine.brake.suspend()

    def reset(self, *, failed_only: bool = False) -> None:
        plan = self._compiled("reset").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is reset")
        if not self._busy.acquire(blocking=False):
            raise exceptions.InvalidState("The engine is running; it cannot be reset now")
        try:
            states.check_flow_transition(self._storage.get_flow_state(), states.PENDING)
            self._reset(self._failed_nodes() if failed_only else plan.atoms())
        finally:
            self._busy.release()

    def _reset(self, nodes: Iterable[int]) -> None:
        lifecycle = self._make_lifecycle(_nothing)
        lifecycle.listen()
        with self._storage.batch():
            lifecycle.reset(nodes)
        self._storage.flow_meta.pop(lifecycle_module.DEADLINE_EXCEEDED, None)
        lifecycle.deliver()
        self._change_state(states.PENDING)

    def _failed_nodes(self) -> list[int]:
        """The atoms that failed.

        :raises InvalidState: something is reverted, or is to be, so that it cannot just go on.
        """
        failed = []
        for node, record in enumerate(self._storage.records):
            if record is None:
                continue
            if record.intention in (states.REVERT, states.RETRY):
                raise exceptions.InvalidState(
                    f"Flow {self._storage.flow_name!r} cannot go on where it failed: atom"
                    f" {record.name!r} is {record.state} and means to {record.intention};"
                    " reset everything, or run it to its end"
                )
            if record.state == states.FAILURE:
                failed.append(node)
        return failed

    def _change_state(self, state: str) -> bool:
        with self._state_lock:
            moved, old_state = self._storage.change_flow_state(state)
        if moved:
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
