"""The moments of steps and of their operations on worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from wbengine import task
from wbengine._calls import invocation as calls
from wbengine.running import CURRENT
from wbengine.testing._crashing.killed import Unexpected
from wbengine.testing._crashing.moments import Moments
from wbengine.testing._crashing.order import task_name, without_item
from wbengine.testing._crashing.outcome import Event, Subject
from wbengine.testing._crashing.schedules import Action, Fault, Moment
from wbengine.testing._worlds.world import DO, Operation, Unavailable, World

__all__ = ["Stepping", "operation_text", "step_name"]


class Stepping:
    """Injects faults into steps (see `fleet.Hooks`) and operations of worlds (see `Recorder`).

    :param interrupt: cancels the flow, or lets its deadline pass.
    """

    def __init__(
        self, subject: Subject, moments: Moments, interrupt: Callable[[Fault], object]
    ) -> None:
        self._subject = subject
        self._moments = moments
        self._outcome = moments.outcome
        self._interrupt = interrupt
        #: The step that runs, and whether it has had an effect.
        self._running: calls.Invocation | None = None
        self._had_effect = False

    # Steps.

    def sending(self, call: calls.Invocation) -> None:
        fault = self._moments.at(Moment.SEND, step_name(call), _SEND_FAULTS)
        if fault is None:
            return
        if fault.action is Action.KILL:
            text = f"the process of the engine was killed before it sent {step_name(call)}"
            raise self._moments.kill(text)
        self._interrupt(fault)

    def starting(self, call: calls.Invocation) -> BaseException | None:
        if self._outcome.schedule.is_separate:
            self._subject.memory.restore()
        name = step_name(call)
        base = _REMOTE_START if self._subject.is_remote else _LOCAL_START
        fault = self._moments.at(Moment.START, name, base + self._declared(call))
        if fault is not None:
            match fault.action:
                case Action.KILL:
                    raise self._moments.kill(f"the process was killed when {name} started")
                case Action.LOSE:
                    raise self._moments.lose(call, fault, f"{name} was received")
                case Action.FAIL:
                    return self._failure(call, fault, Unexpected("injected by crash_everywhere"))
                case _:
                    self._interrupt(fault)
        self._had_effect = False
        step = without_item(call.task.name)
        self._outcome.steps.update((step, task_name(step)))
        self._outcome.tasks.add(type(call.task))
        self._event("step", "starts", call)
        return None

    def running(self, call: calls.Invocation | None) -> None:
        self._running = call

    def ending(self, call: calls.Invocation, outcome: calls.Outcome, *, repeats: bool) -> bool:
        self._moments.check_alive(call)
        if self._outcome.schedule.is_separate:  # The engine does not have the worker's memory.
            self._subject.memory.restore()
        faults = _COPY if repeats else ()
        if self._subject.is_remote and not (outcome.failed or self._had_effect):
            faults = (*faults, *self._losses(call))  # Otherwise, they follow the last effect.
        fault = self._moments.at(Moment.END, step_name(call), faults)
        if outcome.failed:
            self._event("failure", f"failed: {outcome.value.exception_str}", call)
        else:
            self._event("success", "has ended", call)
        if fault is None:
            return False
        if fault.action is not Action.COPY:
            raise self._moments.lose(call, fault, f"{step_name(call)} has ended")
        text = f"a copy of the request of {step_name(call)} ran on another worker"
        self._moments.event("fault", text)
        return True

    def replying(self, call: calls.Invocation) -> None:
        if self._moments.at(Moment.REPLY, step_name(call), _KILL) is not None:
            text = f"the engine was killed before it received the result of {step_name(call)}"
            raise self._moments.kill(text)

    def lost(self, call: calls.Invocation) -> None:
        self._moments.replace_worker(call)

    def failed_by_loss(self, call: calls.Invocation) -> None:
        self._outcome.has_lost_step = True
        if call.action == calls.REVERT:
            self._outcome.has_failed_reversion = True

    def _losses(self, call: calls.Invocation) -> tuple[Fault, ...]:
        """Return the losses of the worker of a step that may have had an effect."""
        is_undecided = call.task.idempotent is None and not self._subject.options.repeats(call.task)
        return (_LOSE, Fault(Action.RESEND)) if is_undecided else (_LOSE,)

    def _declared(self, call: calls.Invocation) -> tuple[Fault, ...]:
        if call.action != calls.EXECUTE:
            return ()
        return tuple(Fault(Action.FAIL, n + 1) for n in range(len(self._exceptions(call))))

    def _exceptions(self, call: calls.Invocation) -> Sequence[type[Exception]]:
        if not self._subject.exceptions:
            return ()
        named, name = self._subject.exceptions, without_item(call.task.name)
        return named.get(name) or named.get(task_name(name)) or ()

    def _failure(self, call: calls.Invocation, fault: Fault, default: Exception) -> Exception:
        error = default
        if fault.exception:
            error = self._exceptions(call)[fault.exception - 1]("injected")
        if call.action == calls.REVERT:
            self._outcome.has_failed_reversion = True
        self._moments.event("fault", f"{step_name(call)} raised {type(error).__name__}")
        return error

    # Operations of worlds.

    def before(self, world: World, kind: str, key: str, line: str) -> None:
        call = self._step()
        self._moments.check_alive(call)
        if call is None:
            return
        faults = (_FAIL, *(_BUSY if world.can_be_busy else ()), *self._declared(call))
        what = f"{world.name}: {kind} {key}"
        fault = self._moments.at(Moment.BEFORE_EFFECT, what, faults, line)
        if fault is None:
            return
        error: Exception
        if fault.action is Action.BUSY:
            error = Unavailable(f"{world.name} is overloaded (injected by crash_everywhere)")
            self._moments.event("fault", f"{world.name} answered that it is overloaded")
            if call.action == calls.REVERT:
                self._outcome.has_failed_reversion = True
        else:
            text = f"{world.name} is unreachable (injected by crash_everywhere)"
            error = self._failure(call, fault, ConnectionError(text))
        if kind == DO:
            text = f"{world.name}: {key!r} failed"
            self._event("refused", text, call, line, refused=(world, key))
        raise error

    def after(self, operation: Operation) -> None:
        call, world = self._step(), operation.world
        self._moments.check_alive(call)
        self._event("operation", operation_text(operation), call, operation.line, operation)
        if call is None:
            return
        self._had_effect = True
        faults: tuple[Fault, ...] = _LOCAL_EFFECT
        if self._subject.is_remote:
            faults = (*self._losses(call), Fault(Action.KILL_BOTH), _FAIL)
        what = f"{world.name}: {operation.kind} {operation.key}"
        fault = self._moments.at(Moment.AFTER_EFFECT, what, faults, operation.line)
        if fault is None:
            return
        match fault.action:
            case Action.KILL | Action.KILL_BOTH:
                raise self._moments.kill(f"the processes were killed after {what}")
            case Action.LOSE | Action.RESEND:
                raise self._moments.lose(call, fault, what)
            case _:
                text = f"{world.name} did not answer (injected by crash_everywhere)"
                raise self._failure(call, fault, TimeoutError(text))

    def _step(self) -> calls.Invocation | None:
        """Return the step that made the present operation, possibly in a thread of its own.

        The function of a workflow makes none while a step runs.
        """
        call = CURRENT.get()
        if call is None:
            return self._running
        return None if isinstance(call.task, task.Workflow) else call

    def _event(
        self,
        kind: str,
        text: str,
        call: calls.Invocation | None,
        line: str = "",
        operation: Operation | None = None,
        refused: tuple[World, str] | None = None,
    ) -> None:
        """Record an event of a step; None: of the function of a workflow."""
        name, execution = "", ("", 0, "")
        if call is not None:
            name, execution = step_name(call), (call.uuid, call.attempt, call.action)
        event = Event(kind, text, name, execution, line, operation, refused)
        self._outcome.events.append(event)


def step_name(call: calls.Invocation) -> str:
    """Return the name of a step, an item of a Map or a reversion in reports."""
    name = call.task.name if call.index < 0 else f"{call.task.name}[{call.index}]"
    return name if call.action == calls.EXECUTE else f"revert of {name}"


def operation_text(operation: Operation) -> str:
    """Return an operation in the words of reports."""
    verb = "did" if operation.kind == DO else "undid"
    text = f"{operation.world.name}: {verb} {operation.key!r}"
    if operation.result != "done":
        text += f" ({_RESULTS[operation.result]})"
    return text


_RESULTS: Final = {
    "duplicate": "already done: nothing happened",
    "undone_before": "done before, and undone: nothing happened",
    "missing": "it does not exist",
}
_FAIL: Final = Fault(Action.FAIL)
_BUSY: Final = (Fault(Action.BUSY),)
_KILL: Final = (Fault(Action.KILL),)
_LOSE: Final = Fault(Action.LOSE)
_COPY: Final = (Fault(Action.COPY),)
_SEND_FAULTS: Final = (*_KILL, Fault(Action.CANCEL))
_LOCAL_START: Final = (*_KILL, _FAIL, Fault(Action.CANCEL), Fault(Action.DEADLINE))
_REMOTE_START: Final = (_LOSE, _FAIL, Fault(Action.CANCEL), Fault(Action.DEADLINE))
_LOCAL_EFFECT: Final = (*_KILL, _FAIL)
