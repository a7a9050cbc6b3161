"""The moments of one run, and the faults that occur at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wbengine._calls import invocation as calls
from wbengine.running import CURRENT
from wbengine.testing._crashing.killed import Killed, LostWorker, Stuck
from wbengine.testing._crashing.outcome import Event, Outcome
from wbengine.testing._crashing.schedules import Action, At, Fault, Moment

__all__ = ["Moments"]


class Moments:
    """Records the moments and events of a run. It also ends the processes that a fault kills."""

    def __init__(self, outcome: Outcome, max_moments: int) -> None:
        self.outcome: Final = outcome
        self._max_moments = max_moments
        self._faults = dict(outcome.schedule.moments)
        #: Called when the process of the engine is killed.
        self.on_kill: Callable[[], None] = _do_nothing
        #: Whether the process of the engine was killed.
        self.is_killed = False
        #: What ended the workers of steps, by uuid of their calls.
        self._losses: dict[str, LostWorker] = {}
        #: Moments of the kind WAIT since the latest moment of another kind.
        self.waits_in_a_row = 0

    def at(
        self, moment: Moment, what: str, faults: tuple[Fault, ...], line: str = ""
    ) -> Fault | None:
        """Note a moment at which some faults can occur. Return the one that occurs.

        :raises Killed: if the process was killed before.
        :raises Stuck: if the run has too many moments.
        """
        if self.is_killed:
            raise Killed
        if moment is not Moment.WAIT:
            self.waits_in_a_row = 0
        number = len(self.outcome.trace)
        if number >= self._max_moments:
            self.outcome.is_endless = True
            raise Stuck("the run does not end")
        self.outcome.trace.append(At(moment, what, line, faults))
        fault = self._faults.get(number)
        if fault is None or fault not in faults:
            return None
        self.outcome.occurred.add(number)
        return fault

    def check_alive(self, call: calls.Invocation | None = None) -> None:
        """End code that goes on in a process that was killed, such as `finally`.

        :param call: the step that the code belongs to; by default, the one that runs in this
            thread, if any. Steps of child flows run in other threads, on other workers.
        """
        if self.is_killed:
            raise Killed
        call = call or CURRENT.get()
        loss = None if call is None else self._losses.get(call.uuid)
        if loss is not None:
            raise loss

    def kill(self, text: str) -> Killed:
        """Note that the engine was killed, and return the exception that ends it."""
        self.is_killed = True
        self.on_kill()
        self.event("fault", text)
        return Killed(text)

    def lose(self, call: calls.Invocation, fault: Fault, when: str) -> LostWorker:
        """Note that the worker of a step was killed, and return the exception that ends it."""
        repeats = fault.action is Action.RESEND
        text = f"the worker was killed after {when}"
        if repeats:
            text += ": the step runs again, as with on_worker_lost='resend' or engine 'serial'"
        self.event("fault", text)
        loss = self._losses[call.uuid] = LostWorker(repeats=repeats)
        return loss

    def replace_worker(self, call: calls.Invocation) -> None:
        """Note that the step has ended with its worker, and may run on another one."""
        self._losses.pop(call.uuid, None)  # None: the engine was killed meanwhile.

    def begin_process(self) -> None:
        """Forget what ended the process before."""
        self.is_killed = False
        self._losses.clear()
        self.waits_in_a_row = 0

    def event(self, kind: str, text: str) -> None:
        """Record an event that belongs to no step."""
        self.outcome.events.append(Event(kind, text))


def _do_nothing() -> None:
    """Do nothing."""
