"""One simulated run of a flow: processes, faults, and a record of what happened."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wbengine import engines, exceptions, signals, states, task
from wbengine._calls import invocation as calls
from wbengine._runtime.workflows.thread_program import ThreadProgram
from wbengine.engines import base as engine_base
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.persistence import _lease_renewer, _listing, models
from wbengine.persistence.backends import _memory
from wbengine.running import CURRENT
from wbengine.testing._crashing import fleet
from wbengine.testing._crashing.clock import IdleClock
from wbengine.testing._crashing.killed import Killed, LostWorker, Stuck, Unexpected
from wbengine.testing._crashing.memory import ProcessMemory
from wbengine.testing._crashing.order import Order, without_item
from wbengine.testing._crashing.schedules import Action, At, Fault, Moment, Schedule, SignalFault
from wbengine.testing._crashing.store import CrashingStore
from wbengine.testing._worlds.world import DO, Operation, World

__all__ = ["Event", "FinishedRun", "Outcome", "OwnCheck", "Subject", "simulate"]

#: Time at which runs start, in Unix seconds.
_START: Final = 1_800_000_000.0

#: Seconds until another engine takes over a flow whose engine was killed.
_TAKEOVER: Final = 20.0
_DAY: Final = 86_400.0

#: Seconds after which a run has to end; a fault advances the clock by more.
_DEADLINE: Final = 1e9

#: Consecutive writes that fail while the store is unreachable. The engine repeats each one twice.
_FAILED_WRITES: Final = 3

#: Number of processes after the last fault, in which the flow has to end.
_LATER_PROCESSES: Final = 3

#: Maximum seconds for which an engine waits for the function of a workflow. It is long, so that
#: each run writes at the same moments.
_ADVANCE_SECONDS: Final = 10.0

#: Waits in a row after which a flow that waits for signals without a timeout waits forever.
_MAX_WAITS: Final = 20

#: Maximum number of moments of a run without faults, after which it counts as endless.
_MAX_MOMENTS: Final = 3_000

#: Runs share worlds, module variables, and the level of logging.
_ONE_AT_A_TIME: Final = threading.RLock()


class FinishedRun(NamedTuple):
    """The end of a run, for own checks.

    :ivar state: state of the flow: SUCCESS, REVERTED, FAILURE, or WAITING if it waits for a signal
        that never arrives.
    :ivar results: results and inputs by name, if the flow succeeded.
    :ivar error: the failure of the flow.
    :ivar faults: whether faults were injected.
    """

    state: str
    results: Mapping[str, Any]
    error: BaseException | None
    faults: bool


#: An own check of a user. It raises AssertionError.
OwnCheck = Callable[[FinishedRun], object]


@dataclass(frozen=True)
class Subject:
    """The flow under test.

    :ivar make: returns a new flow, as a new process does.
    :ivar signals: names and values of signals, in the order in which they are sent.
    :ivar exceptions: classes that the outside systems raise, by the name of the task.
    :ivar is_remote: whether steps run on workers.
    """

    make: Callable[[], Any]
    inputs: Mapping[str, Any]
    worlds: Sequence[World]
    signals: Sequence[tuple[str, Any]] = ()
    exceptions: Mapping[str, Sequence[type[Exception]]] = field(default_factory=dict)
    is_remote: bool = True
    #: Number of moments after which a run counts as endless.
    max_moments: int = _MAX_MOMENTS
    options: RequestOptions = field(default_factory=RequestOptions)
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    #: Called at the end of each run, while the worlds contain its effects. They may raise
    #: AssertionError.
    own_checks: Sequence[OwnCheck] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run, for checks and for people.

    :ivar kind: "process", "step", "operation", "refused", "seen", "fault", "signal" or "end".
    :ivar step: name of the task that ran; "" outside of steps.
    :ivar execution: the execution or reversion of the step, which all its copies share.
    """

    kind: str
    text: str
    step: str = ""
    execution: tuple[str, int, str] = ("", 0, "")
    line: str = ""
    operation: Operation | None = None
    failure: str = ""
    #: World and key of an operation that a fault replaced.
    refused: tuple[World, str] | None = None


@dataclass
class Outcome:
    """The record of a run.

    :ivar state: state of the flow at the end, or "WAITING" if it waits for a signal that is
        missing.
    :ivar values: results by name.
    :ivar error: the failure of the flow, or what ended the simulation.
    """

    schedule: Schedule
    trace: list[At] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    state: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    #: Numbers of moments, and names of signals, whose faults occurred.
    occurred: set[int | str] = field(default_factory=set)
    #: Names of the steps that started.
    steps: set[str] = field(default_factory=set)
    #: Whether a step that must not run twice was lost with its worker.
    has_lost_step: bool = False
    #: Whether a reversion failed because of a fault.
    has_failed_reversion: bool = False
    #: Whether it exceeded the limits of a run.
    is_endless: bool = False
    #: Signals that were not sent, because the flow did not wait for them.
    unsent: list[str] = field(default_factory=list)
    #: Whether steps run on workers.
    is_remote: bool = True
    #: By the name of each own check that failed, its message.
    failed_checks: dict[str, str] = field(default_factory=dict)
    #: Modules of the tasks that ran.
    modules: set[str] = field(default_factory=set)
    #: Whether a step precedes another one, which may depend on it.
    is_before: Callable[[str, str], bool] = lambda _, __: False


def simulate(subject: Subject, schedule: Schedule, *, later: float = 0.0) -> Outcome:
    """Run a flow with the faults of a schedule.

    :param later: seconds by which the simulated clock is ahead.
    """
    run = _Run(subject, schedule, _START + later)
    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        stack.callback(subject.memory.restore)
        subject.memory.restore()
        stack.callback(logging.disable, logging.root.manager.disable)
        stack.callback(setattr, ThreadProgram, "advance_seconds", ThreadProgram.advance_seconds)
        ThreadProgram.advance_seconds = _ADVANCE_SECONDS
        logging.disable()  # Thousands of runs would fill the output of the test.
        for world in subject.worlds:
            stack.enter_context(world.recorded_by(run))
        stack.callback(_lease_renewer.of_process().forget, run.store)
        run.live()
        run.check()
    return run.outcome


class _Run:
    """The processes of one run, one after the other. It records the operations of worlds."""

    def __init__(self, subject: Subject, schedule: Schedule, start: float) -> None:
        self._subject = subject
        self.outcome = Outcome(schedule, is_remote=subject.is_remote)
        self._trace = self.outcome.trace
        self._events = self.outcome.events
        self._faults = dict(schedule.moments)
        self._signal_faults = dict(schedule.signals)
        self._to_send = list(subject.signals)
        self._kept: list[tuple[str, Any]] = []  # signals that arrive late
        self._clock = IdleClock(start, self._idle)
        self._inner = _memory.MemoryBackend(clock=self._clock)
        self.store: Final = CrashingStore(self._inner, self._before_write, self._check_alive)
        self._fleet = fleet.Fleet(subject.options)
        self._is_dead = False
        self._reverts_again = False
        self._trace_is_on = False
        self._failing_writes = 0
        self._lost_answers = 0
        self._waits_in_a_row = 0
        self._had_effect = False
        #: The step that runs.
        self._running: calls.Invocation | None = None
        #: What ended the worker of the present step.
        self._loss: LostWorker | None = None
        self._engine: engine_base.Engine | None = None
        self._remote: fleet.RemoteExecutor | None = None
        self._detail: models.FlowDetail | None = None

    # Processes.

    def live(self) -> None:
        """Run processes until the flow has ended."""
        outcome = self.outcome
        processes = len(self._faults) + _LATER_PROCESSES
        self._prepare()
        for number in range(processes):
            state = self._live_once(number)
            if state in states.FLOW_ENDED or state == states.WAITING:
                if state != states.FAILURE or not outcome.has_failed_reversion:
                    break
                outcome.has_failed_reversion = False
                self._reverts_again = True
                self._event("process", "the operator reverts the flow again")
            self._die()
        else:
            outcome.is_endless = True
        outcome.state = state
        outcome.unsent = [name for name, _ in self._to_send]
        self._event("end", f"the flow ended in {state}")
        if state == states.SUCCESS:
            outcome.values = self._engine_in_use.storage.fetch_all()

    def check(self) -> None:
        """Call the own checks."""
        outcome = self.outcome
        schedule = outcome.schedule
        finished = FinishedRun(
            outcome.state,
            outcome.values,
            outcome.error,
            bool(schedule.moments or schedule.signals or schedule.is_apart),
        )
        for check in self._subject.own_checks:
            try:
                check(finished)
            except AssertionError as error:
                text = str(error) or "AssertionError"
                outcome.failed_checks[check.__name__] = text.replace("\n", "\n    ")

    @property
    def _engine_in_use(self) -> engine_base.Engine:
        assert self._engine is not None
        return self._engine

    def _prepare(self) -> None:
        """Store the flow, as its submission does."""
        self._trace_is_on = False
        self._load(None)
        for name, value in list(self._to_send):
            if self._signal_faults.get(name) is SignalFault.EARLY:
                self._to_send.remove((name, value))
                self.outcome.occurred.add(name)
                self._send(name, value)
        self._trace_is_on = True

    def _load(self, detail: models.FlowDetail | None) -> None:
        subject = self._subject
        inputs = copy.deepcopy(subject.inputs) if detail is None else None
        self._remote = fleet.RemoteExecutor(self, self._fleet) if subject.is_remote else None
        executor = self._remote or fleet.LocalExecutor(self)
        engine = engines.load(
            subject.make(),
            inputs,
            detail,
            backend=self.store,
            engine="parallel",
            executor=executor,
            clock=self._clock,
        )
        self._engine = engine
        self._detail = engine._flow_detail
        compilation = engine._compilation
        assert compilation is not None
        self.outcome.is_before = Order(compilation.plan).is_before

    def _live_once(self, number: int) -> str:
        """Run one process. Return the state of the flow."""
        outcome = self.outcome
        outcome.error = None
        if number:
            assert self._detail is not None
            with contextlib.closing(self._inner.get_connection()) as connection:
                stored = connection.get_flow_details(self._detail.uuid)
            if stored.state in (states.SUCCESS, states.REVERTED):
                state = str(stored.state)
                self._load(stored)
                if state == states.SUCCESS:
                    self._trace_is_on = False
                    self._engine_in_use.prepare()  # It then returns the results.
                return state
            self._event("process", f"process {number + 1} continues the flow")
            self._load(stored)
        engine = self._engine_in_use
        if self._reverts_again:  # as `operations.revert` does, again after a kill
            engine.notifier.register(states.RUNNING, lambda *_, **__: engine.cancel())
        try:
            engine.run(deadline=_DEADLINE)
        except Killed:
            return "KILLED"
        except Stuck as error:
            if outcome.is_endless:
                return "ENDLESS"
            outcome.error = error
            return states.WAITING
        except exceptions.StorageFailure as error:
            outcome.error = error
            return "KILLED"
        except Exception as error:  # the failure of the flow
            outcome.error = error
        if self._is_dead:
            return "KILLED"
        self._reverts_again = False  # Otherwise, the operator tries again.
        return engine.storage.get_flow_state()

    def _die(self) -> None:
        """End the process: what it kept in memory is lost, and its lease expires."""
        killed = self._engine_in_use._run
        if killed is not None and killed._workflows is not None:
            killed._workflows.halt()  # It ends the threads of their functions.
        self._is_dead = False
        self._waits_in_a_row = 0
        self._failing_writes = 0
        self._lost_answers = 0
        self._subject.memory.restore()
        self._clock.advance(_TAKEOVER)

    def _kill(self, text: str) -> Killed:
        self._is_dead = True
        if self._remote is not None:
            self._remote.disown()
        self._event("fault", text)
        return Killed(text)

    def _check_alive(self) -> None:
        """End code that goes on in a process that was killed, such as `finally`."""
        if self._is_dead:
            raise Killed
        if self._loss is not None:
            raise self._loss

    # Moments.

    def _at(
        self, moment: Moment, what: str, faults: tuple[Fault, ...], line: str = ""
    ) -> Fault | None:
        """Note a moment. Return the fault that occurs."""
        if self._is_dead:
            raise Killed
        if moment is not Moment.WAIT:
            self._waits_in_a_row = 0
        number = len(self._trace)
        if number >= self._subject.max_moments:
            self.outcome.is_endless = True
            raise Stuck("the run does not end")
        self._trace.append(At(moment, what, line, faults))
        fault = self._faults.get(number)
        if fault is None or fault not in faults:
            return None
        self.outcome.occurred.add(number)
        return fault

    def _before_write(self, method: str) -> BaseException | None:
        if not self._trace_is_on:
            return None
        self._check_alive()
        if self._failing_writes:
            self._failing_writes -= 1
            raise exceptions.StorageFailure("The store is unreachable (injected)")
        if self._lost_answers:
            self._lost_answers -= 1
            return exceptions.StorageFailure("The store did not answer (injected)")
        fault = self._at(Moment.WRITE, method, _WRITE_FAULTS)
        if fault is None:
            return None
        if fault.action is Action.KILL:
            raise self._kill("the process of the engine was killed before a write")
        if fault.action is Action.UNREACHABLE:
            self._event("fault", "the store was unreachable")
            self._failing_writes = _FAILED_WRITES - 1
            raise exceptions.StorageFailure("The store is unreachable (injected)")
        self._event("fault", "the store wrote, but did not answer")
        self._lost_answers = _FAILED_WRITES - 1
        return exceptions.StorageFailure("The store did not answer (injected)")

    def _idle(self, timeout: float | None) -> bool:
        """Handle a wait of the engine. Return whether it has caused something to receive."""
        self._check_alive()
        if self._remote is not None and self._remote.run_next():
            return True
        waits = self._engine_in_use._flow_detail.waits_for
        if self._send_awaited(waits):
            return True
        self._waits_in_a_row += 1
        if self._waits_in_a_row == 1:  # An engine also waits in several parts.
            fault = self._at(Moment.WAIT, "", _WAIT_FAULTS)
            if fault is not None:
                return self._disturb_wait(fault)
        if timeout is None or (self._waits_in_a_row > _MAX_WAITS and _are_endless(waits)):
            if not self._kept:
                names = ", ".join(sorted({wait.signal for wait in waits}))
                raise Stuck(f"the flow waits without a timeout for {names or 'something'}")
            self._send(*self._kept.pop(0))
            return True
        return False

    def _send_awaited(self, waits: Sequence[_listing.Wait]) -> bool:
        """Send the first signal for which the flow waits. Return whether it arrived."""
        for name, value in list(self._to_send):
            if any(name in wait.signal.split(signals.OR) for wait in waits):
                self._to_send.remove((name, value))
                if self._send_with_fault(name, value):
                    return True
        return False

    def _disturb_wait(self, fault: Fault) -> bool:
        if fault.action is not Action.LATER:
            return self._interrupt(fault)
        error = self._kill("the process of the engine was killed, and continues a day later")
        self._clock.advance(_DAY)
        raise error

    def _interrupt(self, fault: Fault) -> bool:
        """Cancel the flow, or let its deadline pass."""
        if fault.action is Action.CANCEL:
            self._event("fault", "the flow was cancelled")
            self._engine_in_use.cancel(reason="cancelled by crash_everywhere")
            return True
        self._event("fault", "the deadline of the flow passed")
        self._clock.advance(_DEADLINE + 1)
        return False

    def _send_with_fault(self, name: str, value: Any) -> bool:
        self.outcome.occurred.add(name)
        match self._signal_faults.get(name):
            case SignalFault.MISSING:
                self._event("fault", f"signal {name!r} did not arrive")
                return False
            case SignalFault.LATE:
                self._event("fault", f"signal {name!r} did not arrive in time")
                self._kept.append((name, value))
                return False
            case SignalFault.TWICE:
                self._send(name, value)
                with contextlib.suppress(exceptions.Duplicate):
                    self._send(name, value)
                return True
        self._send(name, value)
        return True

    def _send(self, name: str, value: Any) -> None:
        self._event("signal", f"signal {name!r} arrived")
        self._engine_in_use.signal(name, value)

    # Steps (see `fleet.Hooks`).

    def sending(self, call: calls.Invocation) -> None:
        fault = self._at(Moment.SEND, _name(call), _SEND_FAULTS)
        if fault is None:
            return
        if fault.action is Action.KILL:
            raise self._kill(f"the process of the engine was killed before it sent {_name(call)}")
        self._interrupt(fault)

    def starting(self, call: calls.Invocation) -> BaseException | None:
        if self.outcome.schedule.is_apart:
            self._subject.memory.restore()
        name, faults = _name(call), self._start_faults(call)
        fault = self._at(Moment.START, name, faults)
        if fault is not None:
            match fault.action:
                case Action.KILL:
                    raise self._kill(f"the process was killed when {name} started")
                case Action.LOSE:
                    raise self._lose(fault, f"{name} was received")
                case Action.FAIL:
                    return self._failure(call, fault)
                case _:
                    self._interrupt(fault)
        self._had_effect = False
        name = without_item(call.task.name)
        self.outcome.steps.update((name, _short(name)))
        self.outcome.modules.add(type(call.task).__module__)
        self._step_event(call, "starts")
        return None

    def _start_faults(self, call: calls.Invocation) -> tuple[Fault, ...]:
        base = _REMOTE_START if self._subject.is_remote else _LOCAL_START
        return base + self._declared(call)

    def _declared(self, call: calls.Invocation) -> tuple[Fault, ...]:
        if call.action != calls.EXECUTE or not self._subject.exceptions:
            return ()
        return tuple(Fault(Action.FAIL, n + 1) for n in range(len(self._exceptions(call))))

    def _exceptions(self, call: calls.Invocation) -> Sequence[type[Exception]]:
        named, name = self._subject.exceptions, without_item(call.task.name)
        return named.get(name) or named.get(_short(name)) or ()

    def _failure(
        self, call: calls.Invocation, fault: Fault, default: Exception | None = None
    ) -> Exception:
        if fault.exception:
            error: Exception = self._exceptions(call)[fault.exception - 1]("injected")
        else:
            error = default or Unexpected("injected by crash_everywhere")
        if call.action == calls.REVERT:
            self.outcome.has_failed_reversion = True
        self._event("fault", f"{_name(call)} raised {type(error).__name__}")
        return error

    def ending(self, call: calls.Invocation, outcome: calls.Outcome, *, repeats: bool) -> bool:
        self._check_alive()
        if self.outcome.schedule.is_apart:  # The engine does not have the memory of the worker.
            self._subject.memory.restore()
        faults = _COPY if repeats else ()
        if self._subject.is_remote and not (outcome.failed or self._had_effect):
            faults = (*faults, *self._losses(call))  # Otherwise, they follow the last effect.
        fault = self._at(Moment.END, _name(call), faults)
        text = "has ended"
        if outcome.failed:
            text = f"failed: {outcome.value.exception_str}"
        self._step_event(call, text, failure=text if outcome.failed else "")
        if fault is None:
            return False
        if fault.action is not Action.COPY:
            raise self._lose(fault, f"{_name(call)} has ended")
        self._event("fault", f"a copy of the request of {_name(call)} ran on another worker")
        return True

    def replying(self, call: calls.Invocation) -> None:
        if self._at(Moment.REPLY, _name(call), _KILL) is not None:
            name = _name(call)
            raise self._kill(f"the engine was killed before it received the result of {name}")

    def _losses(self, call: calls.Invocation) -> tuple[Fault, ...]:
        """Return the losses of the worker of a step that may have had an effect."""
        is_undecided = call.task.idempotent is None and not self._fleet.options.repeats(call.task)
        return (_LOSE, Fault(Action.RESEND)) if is_undecided else (_LOSE,)

    def _lose(self, fault: Fault, when: str) -> LostWorker:
        """Note that the worker was killed, and return the exception that ends it."""
        repeats = fault.action is Action.RESEND
        text = f"the worker was killed after {when}"
        if repeats:
            text += ": the step runs again, as with on_worker_lost='resend' or engine 'serial'"
        self._event("fault", text)
        self._loss = LostWorker(repeats=repeats)
        return self._loss

    def lost(self) -> None:
        self._loss = None

    def failed_by_loss(self, call: calls.Invocation) -> None:
        self.outcome.has_lost_step = True
        if call.action == calls.REVERT:
            self.outcome.has_failed_reversion = True

    def running(self, call: calls.Invocation | None) -> None:
        self._running = call

    def _step(self) -> calls.Invocation | None:
        """Return the step that made the present operation, possibly in a thread of its own.

        The function of a workflow makes none while a step runs.
        """
        call = CURRENT.get()
        if call is None:
            return self._running
        return None if isinstance(call.task, task.Workflow) else call

    # Operations of worlds (see `Recorder`).

    def before(self, world: World, kind: str, key: str, line: str) -> None:
        self._check_alive()
        call = self._step()
        if call is None:
            return
        faults = (_FAIL, *self._declared(call))
        fault = self._at(Moment.BEFORE_EFFECT, f"{world.name}: {kind} {key}", faults, line)
        if fault is not None:
            text = f"{world.name} is unreachable (injected by crash_everywhere)"
            error = self._failure(call, fault, ConnectionError(text))
            if kind == DO:
                text, execution = f"{world.name}: {key!r} failed", _execution(call)
                refused = (world, key)
                event = Event("refused", text, _name(call), execution, line, refused=refused)
                self._events.append(event)
            raise error

    def seen(self, world: World, key: str) -> None:
        call = self._step()
        if call is not None:
            operation = Operation(world, DO, key, "seen", "")
            event = Event("seen", "", _name(call), _execution(call), operation=operation)
            self._events.append(event)

    def after(self, operation: Operation) -> None:
        self._check_alive()
        call = self._step()
        verb = "did" if operation.kind == DO else "undid"
        text = f"{operation.world.name}: {verb} {operation.key!r}"
        if operation.result != "done":
            text += f" ({_RESULTS[operation.result]})"
        self._step_event(call, text, operation=operation)
        if call is None:
            return
        self._had_effect = True
        faults: tuple[Fault, ...] = _LOCAL_EFFECT
        if self._subject.is_remote:
            faults = (*self._losses(call), Fault(Action.POWER), _FAIL)
        what = f"{operation.world.name}: {operation.kind} {operation.key}"
        fault = self._at(Moment.AFTER_EFFECT, what, faults, operation.line)
        if fault is None:
            return
        match fault.action:
            case Action.KILL | Action.POWER:
                raise self._kill(f"the processes were killed after {what}")
            case Action.LOSE | Action.RESEND:
                raise self._lose(fault, what)
            case _:
                text = f"{operation.world.name} did not answer (injected by crash_everywhere)"
                raise self._failure(call, fault, TimeoutError(text))

    # Events.

    def _event(self, kind: str, text: str) -> None:
        self._events.append(Event(kind, text))

    def _step_event(
        self,
        call: calls.Invocation | None,
        text: str,
        *,
        operation: Operation | None = None,
        failure: str = "",
    ) -> None:
        kind = "step" if operation is None else "operation"
        line = "" if operation is None else operation.line
        if call is None:
            self._events.append(Event(kind, text, line=line, operation=operation))
            return
        execution = _execution(call)
        name = _name(call)
        self._events.append(Event(kind, text, name, execution, line, operation, failure))


def _are_endless(waits: Sequence[_listing.Wait]) -> bool:
    return all(wait.until is None for wait in waits)


def _execution(call: calls.Invocation) -> tuple[str, int, str]:
    return call.uuid, call.attempt, call.action


def _name(call: calls.Invocation) -> str:
    name = call.task.name if call.index < 0 else f"{call.task.name}[{call.index}]"
    return name if call.action == calls.EXECUTE else f"revert of {name}"


def _short(name: str) -> str:
    """Return the name of the task of a step, for example 'charge' for 'checkout/1.3-charge'."""
    return name.rpartition("/")[2].partition("-")[2] if "/" in name else name.rpartition(".")[2]


_RESULTS: Final = {
    "known": "already done: nothing happened",
    "ended": "done before, and undone: nothing happened",
    "missing": "it does not exist",
}
_FAIL: Final = Fault(Action.FAIL)
_KILL: Final = (Fault(Action.KILL),)
_LOSE: Final = Fault(Action.LOSE)
_COPY: Final = (Fault(Action.COPY),)
_WRITE_FAULTS: Final = (
    Fault(Action.KILL), Fault(Action.UNREACHABLE), Fault(Action.LOST_ANSWER),
)  # fmt: skip
_SEND_FAULTS: Final = (*_KILL, Fault(Action.CANCEL))
_WAIT_FAULTS: Final = (Fault(Action.LATER), Fault(Action.CANCEL), Fault(Action.DEADLINE))
_LOCAL_START: Final = (*_KILL, _FAIL, Fault(Action.CANCEL), Fault(Action.DEADLINE))
_REMOTE_START: Final = (_LOSE, _FAIL, Fault(Action.CANCEL), Fault(Action.DEADLINE))
_LOCAL_EFFECT: Final = (*_KILL, _FAIL)
