"""The engine: wires plan, storage, scheduler, lifecycle, machine and executor.

This is the only module that knows all the parts.  Kinds of engines differ in one thing: the
executor that `_make_executor` gives them.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import threading
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar, Final

from wbengine import _clock, exceptions, states
from wbengine import invocation as calls
from wbengine import storage as storage_module
from wbengine._core import compiler, executors
from wbengine._core import lifecycle as lifecycle_module
from wbengine._core import machine as machine_module
from wbengine._core import plan as plan_module
from wbengine._core import scheduler as scheduler_module
from wbengine.engines import base
from wbengine.engines import compilation as compilation_module
from wbengine.persistence import base as persistence
from wbengine.persistence import models
from wbengine.types import failure as ft

__all__ = ["ActionEngine"]

#: After so many atoms that lack something, the chain of causes does not get longer.
_MAX_CAUSES: Final = 50

#: So many atoms that lack something are named in the first line of the error.
_MAX_ASKERS: Final = 3


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
        self._state_lock = threading.Lock()
        self._machine: machine_module.Machine | None = None
        self._began: float | None = None
        self._ended: float | None = None
        self._task_executor = self._make_executor()
        self._in_process = getattr(self._task_executor, "in_process", False)
        # Tasks marked `local` stay here, whatever the executor does with the others.
        self._near = None if self._in_process else executors.ThreadTaskExecutor()

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
        """`completed`, `awaiting` and `incomplete` calls, `active_for` seconds, and more."""
        machine, began = self._machine, self._began
        if machine is None or began is None:
            return {}
        ended = self._ended if self._ended is not None else self._clock.monotonic()
        return {
            "seconds_per_state": dict(machine.seconds_per_state),
            "active_for": ended - began,
            "completed": machine.completed,
            "awaiting": machine.awaiting,
            "incomplete": machine.withdrawn,
            "discarded_failures": machine.discarded,
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
            self.reset()

    def validate(self) -> None:
        plan = self._compiled("validated").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is validated")
        missing: dict[str, None] = {}
        cause: exceptions.MissingDependencies | None = None
        askers: list[str] = []
        lacking_atoms = 0
        for node in plan.atoms():
            atom: Any = plan.items[node]
            arguments: dict[str, None] = {}
            for method, lacking in self._lacking(atom):
                missing.update(dict.fromkeys(lacking.values()))
                arguments.update(dict.fromkeys(lacking))
                if lacking_atoms < _MAX_CAUSES:
                    names = sorted(set(lacking.values()))
                    cause = exceptions.MissingDependencies(
                        _who(atom, lacking), names, cause=cause, method=method
                    )
            if arguments:
                lacking_atoms += 1
                if lacking_atoms <= _MAX_ASKERS:
                    askers.append(f"{', '.join(map(repr, arguments))} of {atom.name!r}")
        if missing:
            if lacking_atoms > _MAX_ASKERS:
                askers.append(f"{lacking_atoms - _MAX_ASKERS} more")
            raise exceptions.MissingDependencies(
                self._flow,
                sorted(missing),
                cause=cause,
                available=self._storage.known_names(),
                askers=askers,
            )

    def _lacking(self, atom: Any) -> Iterator[tuple[str, dict[str, str]]]:
        """`(method, {argument: stored name})` for each method that lacks arguments."""
        for method, rebind, optional in (
            ("execute", atom.rebind, atom.optional),
            ("revert", atom.revert_rebind, atom.revert_optional),
        ):
            if rebind:
                found = self._storage.fetch_unsatisfied_args(
                    atom.name, rebind, optional_args=optional
                )
                if found:
                    yield method, found

    def _compiled(self, what: str) -> compilation_module.Compilation:
        if self._compilation is None:
            raise exceptions.InvalidState(f"An engine must be compiled before it is {what}")
        return self._compilation

    # -- running --------------------------------------------------------------------------------

    def run(self, timeout: float | None = None) -> None:
        """Run the flow to an end state, or to SUSPENDED.

        Raises what the flow failed with: a single failure as itself, several as `WrappedFailure`.
        `ExecutionFailure` when the engine is running already.  `timeout` bounds each single wait of
        the run loop, not the run.
        """
        with self._session(timeout) as machine:
            machine.run(timeout, measure=self._gather_statistics)
        # Out here a StopIteration is like any other exception.
        self._raise_failures(machine)

    def run_iter(self, timeout: float | None = None) -> Generator[str, Any, None]:
        """Run the flow; yield each state of the run loop, and raise like `run` at the end.

        `send(True)` suspends; `close()` suspends and waits for what runs; an exception thrown in
        ends the run, and what has not started is taken back.
        """
        with self._session(timeout) as machine:
            closing = False
            for state in machine.run_iter(timeout, measure=self._gather_statistics):
                if closing:
                    continue
                try:
                    if (yield state):
                        self.suspend()
                except GeneratorExit:
                    closing = True
                    self.suspend()
        self._raise_failures(machine)

    @contextlib.contextmanager
    def _session(self, timeout: float | None) -> Iterator[machine_module.Machine]:
        """Everything around the loop of one run; whoever enters drives the machine to its end."""
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise ValueError(f"The timeout must be a number of seconds or None, not {timeout!r}")
        if not self._busy.acquire(blocking=False):
            raise exceptions.ExecutionFailure("The engine is running already")
        try:
            self.compile()
            self.prepare()
            self.validate()
            with self._storage.batch():
                machine = self._machine = self._make_machine()
                self._began, self._ended = self._clock.monotonic(), None
                with self._executing(machine):
                    yield machine
                self._change_state(machine.state)
                self._storage.flush()
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def _executing(self, machine: machine_module.Machine) -> Iterator[None]:
        self._task_executor.start()  # one that cannot start changes nothing of the flow
        if self._near is not None:
            self._near.start()
        try:
            self._change_state(states.RUNNING)
            yield
        except BaseException as error:
            self._abort(machine, error)
            raise
        finally:
            self._stop_executors()
            self._ended = self._clock.monotonic()

    def _abort(self, machine: machine_module.Machine, error: BaseException) -> None:
        """Leave a legal state behind, whatever happened in the loop.

        An interruption (`KeyboardInterrupt`, `SystemExit`) suspends: the next run goes on.
        """
        machine.abandon()
        self._stop_executors()
        machine.collect()
        if isinstance(error, Exception):
            self._change_state(states.FAILURE)
        else:
            self._change_state(states.SUSPENDING)
            self._change_state(states.SUSPENDED)

    def _stop_executors(self) -> None:
        self._task_executor.stop()
        if self._near is not None:
            self._near.stop()

    def _make_machine(self) -> machine_module.Machine:
        plan = self._compiled("run").plan
        inbox = machine_module.new_inbox()
        lifecycle = self._make_lifecycle(functools.partial(inbox.put, None))
        return machine_module.Machine(
            plan,
            scheduler_module.Scheduler(plan, self._saved_states()),
            lifecycle,
            self._storage,
            self._task_executor,
            inbox,
            near=self._near,
            never_resolve=self._never_resolve,
            defer_reverts=self._defer_reverts,
            clock=self._clock,
        )

    def _make_lifecycle(self, touched: Any) -> lifecycle_module.Lifecycle:
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

    def _raise_failures(self, machine: machine_module.Machine) -> None:
        if machine.state in (states.SUCCESS, states.SUSPENDED):
            return
        failures = list(machine.problems)
        failures.extend(self._storage.get_execute_failures().values())
        failures.extend(self._storage.get_revert_failures().values())
        ft.Failure.reraise_if_any(failures)

    # -- from outside ---------------------------------------------------------------------------

    def suspend(self) -> None:
        """Let nothing more start; what runs finishes, then the flow is SUSPENDED.  Any thread.

        Does nothing while the flow does not run.  Raises `InvalidState` before `compile`.
        """
        self._compiled("suspended")
        machine = self._machine
        if self._change_state(states.SUSPENDING) and machine is not None:
            machine.suspend()

    def reset(self) -> None:
        """Forget all results and failures, so that the next run starts anew.

        Attempt numbers go on.  Raises `InvalidState`, with nothing changed, while the flow runs
        or is suspended.
        """
        plan = self._compiled("reset").plan
        if not self._prepared:
            raise exceptions.InvalidState("An engine must be prepared before it is reset")
        states.check_flow_transition(self._storage.get_flow_state(), states.PENDING)
        lifecycle = self._make_lifecycle(_nothing)
        lifecycle.listen()
        with self._storage.batch():
            lifecycle.reset(plan.atoms())
        lifecycle.deliver()
        self._change_state(states.PENDING)

    def _change_state(self, state: str) -> bool:
        with self._state_lock:
            moved, old_state = self._storage.change_flow_state(state)
        if moved and len(self._notifier):
            self._notifier.notify(
                state,
                {
                    "engine": self,
                    "flow_name": self._storage.flow_name,
                    "flow_uuid": self._storage.flow_uuid,
                    "old_state": old_state,
                },
            )
        return moved


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


def _who(atom: Any, lacking: dict[str, str]) -> str:
    renamed = [f"{argument} from {name}" for argument, name in lacking.items() if argument != name]
    return f"{atom}" + (f" ({', '.join(renamed)})" if renamed else "")
