"""One simulated run of a flow: its processes, one after the other."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections.abc import Sequence
from typing import Final

from wbengine import engines, exceptions, states
from wbengine._runtime.workflows.thread_program import ThreadProgram
from wbengine.engines import base as engine_base
from wbengine.persistence import _lease_renewer, _listing, models
from wbengine.persistence.backends import _memory
from wbengine.testing._crashing import fleet
from wbengine.testing._crashing.clock import IdleClock
from wbengine.testing._crashing.killed import Killed, Stuck
from wbengine.testing._crashing.moments import Moments
from wbengine.testing._crashing.order import Order
from wbengine.testing._crashing.outcome import FinishedRun, Outcome, Subject
from wbengine.testing._crashing.schedules import Action, Fault, Moment, Schedule
from wbengine.testing._crashing.sending import SignalSender
from wbengine.testing._crashing.stepping import Stepping
from wbengine.testing._crashing.store import CrashingStore
from wbengine.testing._worlds import world as worlds

__all__ = ["check_end", "simulate"]

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

#: Runs share worlds, module variables, and the level of logging.
_ONE_AT_A_TIME: Final = threading.RLock()


def simulate(subject: Subject, schedule: Schedule, *, later: float = 0.0) -> Outcome:
    """Run a flow with the faults of a schedule.

    :param later: seconds by which the simulated clock is ahead.
    """
    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        run = _Run(subject, schedule, _START + later)
        stack.callback(subject.memory.restore)
        subject.memory.restore()
        stack.callback(logging.disable, logging.root.manager.disable)
        stack.callback(setattr, ThreadProgram, "advance_seconds", ThreadProgram.advance_seconds)
        ThreadProgram.advance_seconds = _ADVANCE_SECONDS
        logging.disable()  # Thousands of runs would fill the output of the test.
        unknown_worlds = stack.enter_context(worlds.without_recorder())
        for world in subject.worlds:
            stack.enter_context(world.recorded_by(run.stepping))
        stack.callback(_lease_renewer.of_process().forget, run.store)
        run.live()
        run.outcome.unknown_worlds = unknown_worlds
        check_end(subject, run.outcome)
    return run.outcome


def check_end(subject: Subject, outcome: Outcome) -> None:
    """Call the own checks, while the worlds contain the effects of the run."""
    has_faults = outcome.schedule != Schedule()
    finished = FinishedRun(outcome.state, outcome.values, outcome.error, has_faults)
    for check in subject.own_checks:
        try:
            check(finished)
        except AssertionError as error:
            text = str(error) or "AssertionError"
            outcome.failed_checks[check.__name__] = text.replace("\n", "\n    ")


class _Run:
    """The processes of one run, one after the other."""

    def __init__(self, subject: Subject, schedule: Schedule, start: float) -> None:
        self._subject = subject
        self.outcome: Final = Outcome(schedule, is_remote=subject.is_remote)
        self._moments = Moments(self.outcome, subject.max_moments)
        self.stepping: Final = Stepping(subject, self._moments, self._interrupt)
        self._sender = SignalSender(
            subject.signals, self._moments, lambda name, value: self._engine.signal(name, value)
        )
        self._start = start
        self._clock = IdleClock(start, self._idle)
        self._inner = _memory.MemoryBackend(clock=self._clock)
        self.store: Final = CrashingStore(
            self._inner, self._before_write, self._moments.check_alive
        )
        self._fleet = fleet.Fleet(subject.options)
        self._moments.on_kill = self._fleet.end_process
        self._reverts_again = False
        #: Whether writes are moments: the flow has been submitted, and has not ended.
        self._has_write_moments = False
        #: Next writes that fail while the store is unreachable, and that have no answer.
        self._failing_writes = 0
        self._lost_answers = 0
        self._engine: engine_base.Engine
        self._flow_uuid = ""

    # Processes.

    def live(self) -> None:
        """Run processes until the flow has ended."""
        outcome = self.outcome
        processes = len(outcome.schedule.moments) + _LATER_PROCESSES
        self._load(None)
        self._sender.send_early()
        self._has_write_moments = True
        for number in range(processes):
            state = self._live_once(number)
            if state in states.FLOW_ENDED or state == states.WAITING:
                if state != states.FAILURE or not outcome.has_failed_reversion:
                    break
                outcome.has_failed_reversion = False
                self._reverts_again = True
                self._moments.event("process", "the operator reverts the flow again")
            self._die()
        else:
            outcome.is_endless = True
        outcome.state = state
        outcome.unsent = self._sender.unsent
        outcome.seconds = self._clock.time() - self._start
        self._moments.event("end", f"the flow ended in {state}")
        outcome.first_attempts = {
            record.name: first
            for record in self._engine.storage.flow_detail
            if (first := models.first_attempt(record))
        }
        if state == states.SUCCESS:
            outcome.values = self._engine.storage.fetch_all()

    def _load(self, detail: models.FlowDetail | None) -> None:
        subject = self._subject
        inputs = copy.deepcopy(subject.inputs) if detail is None else None
        executor: fleet.LocalExecutor | fleet.RemoteExecutor = fleet.LocalExecutor(self.stepping)
        if subject.is_remote:
            executor = fleet.RemoteExecutor(self.stepping, self._fleet)
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
        self._flow_uuid = engine._flow_detail.uuid
        compilation = engine._compilation
        assert compilation is not None
        self.outcome.is_before = Order(compilation.plan).is_before

    def _live_once(self, number: int) -> str:
        """Run one process. Return the state of the flow."""
        outcome = self.outcome
        outcome.error = None
        if number:
            with contextlib.closing(self._inner.get_connection()) as connection:
                stored = connection.get_flow_details(self._flow_uuid)
            if stored.state in (states.SUCCESS, states.REVERTED):
                state = str(stored.state)
                self._load(stored)
                if state == states.SUCCESS:
                    self._has_write_moments = False
                    self._engine.prepare()  # It then returns the results.
                return state
            self._moments.event("process", f"process {number + 1} continues the flow")
            self._load(stored)
        engine = self._engine
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
        if self._moments.is_killed:
            return "KILLED"
        self._reverts_again = False  # Otherwise, the operator tries again.
        return engine.storage.get_flow_state()

    def _die(self) -> None:
        """End the process: what it kept in memory is lost, and its lease expires."""
        killed = self._engine._run
        if killed is not None and killed._workflows is not None:
            killed._workflows.halt()  # It ends the threads of their functions.
        self._moments.begin_process()
        self._fleet.end_process()
        self._failing_writes = 0
        self._lost_answers = 0
        self._subject.memory.restore()
        self._clock.advance(_TAKEOVER)

    # Writes.

    def _before_write(self, method: str) -> BaseException | None:
        if not self._has_write_moments:
            return None
        self._moments.check_alive()
        if self._failing_writes:
            self._failing_writes -= 1
            raise exceptions.StorageFailure("The store is unreachable (injected)")
        if self._lost_answers:
            self._lost_answers -= 1
            return exceptions.StorageFailure("The store did not answer (injected)")
        fault = self._moments.at(Moment.WRITE, method, _WRITE_FAULTS)
        if fault is None:
            return None
        if fault.action is Action.KILL:
            raise self._moments.kill("the process of the engine was killed before a write")
        if fault.action is Action.UNREACHABLE:
            self._moments.event("fault", "the store was unreachable")
            self._failing_writes = _FAILED_WRITES - 1
            raise exceptions.StorageFailure("The store is unreachable (injected)")
        self._moments.event("fault", "the store wrote, but did not answer")
        self._lost_answers = _FAILED_WRITES - 1
        return exceptions.StorageFailure("The store did not answer (injected)")

    # Waits.

    def _idle(self, timeout: float | None) -> bool:
        """Handle a wait of the engine. Return whether it has caused something to receive."""
        moments = self._moments
        moments.check_alive()
        if self._fleet.run_next():
            return True
        waits = self._engine._flow_detail.waits_for
        if self._sender.send_awaited(waits):
            return True
        moments.waits_in_a_row += 1
        if moments.waits_in_a_row == 1:  # An engine also waits in several parts.
            fault = moments.at(Moment.WAIT, "", _WAIT_FAULTS)
            if fault is not None:
                return self._disturb_wait(fault)
        if timeout is None or (moments.waits_in_a_row > _MAX_WAITS and _are_endless(waits)):
            if not self._sender.send_late():
                names = ", ".join(sorted({wait.signal for wait in waits}))
                raise Stuck(f"the flow waits without a timeout for {names or 'something'}")
            return True
        return False

    def _disturb_wait(self, fault: Fault) -> bool:
        if fault.action is not Action.LATER:
            return self._interrupt(fault)
        error = self._moments.kill(
            "the process of the engine was killed, and continues a day later"
        )
        self._clock.advance(_DAY)
        raise error

    def _interrupt(self, fault: Fault) -> bool:
        """Cancel the flow, or let its deadline pass. Return whether the engine receives it."""
        if fault.action is Action.CANCEL:
            self._moments.event("fault", "the flow was cancelled")
            self._engine.cancel(reason="cancelled by crash_everywhere")
            return True
        self._moments.event("fault", "the deadline of the flow passed")
        self._clock.advance(_DEADLINE + 1)
        return False


def _are_endless(waits: Sequence[_listing.Wait]) -> bool:
    return all(wait.until is None for wait in waits)


_WRITE_FAULTS: Final = (
    Fault(Action.KILL), Fault(Action.UNREACHABLE), Fault(Action.LOST_ANSWER),
)  # fmt: skip
_WAIT_FAULTS: Final = (Fault(Action.LATER), Fault(Action.CANCEL), Fault(Action.DEADLINE))
