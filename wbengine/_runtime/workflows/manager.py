"""The workflows of a run that are in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from wbengine._calls import invocation as calls
from wbengine._runtime.control import GivenUp
from wbengine._runtime.workflow_call import WorkflowCall, latest_execution
from wbengine._runtime.workflows.step_records import StepRecords
from wbengine._runtime.workflows.workflow_run import WorkflowRun
from wbengine.persistence import models

__all__ = ["Progress", "Workflows"]


_REVERTED: Final = GivenUp(models.CANCELLED, "it is being reverted")


class Progress(NamedTuple):
    """Calls that begin now, nodes of workflows that end, and workflows that have ended.

    The remaining steps of `ending` must be withdrawn.
    """

    begun: list[calls.Invocation]
    ending: list[int]
    ended: list[tuple[WorkflowCall, calls.Outcome]]


class Workflows:
    """Runs the functions of workflows. Not thread-safe: only the thread of the engine uses it.

    For the plan and the scheduler, a workflow is one node that is in flight until its function and
    its last step have ended.

    :param wake: wakes the loop of the run, from any thread.
    :param now: returns Unix seconds.
    """

    def __init__(
        self,
        records: StepRecords,
        wake: Callable[[], object],
        now: Callable[[], float],
    ) -> None:
        self._records = records
        self._wake = wake
        self._now = now
        self.running: dict[int, WorkflowRun] = {}
        # Nodes of workflows that may be able to advance, as an ordered set.
        self._changed: dict[int, None] = {}
        # Nodes of workflows whose functions wait again or have ended. Their threads add them.
        self._woken: deque[int] = deque()
        self._is_halted = False
        self._given_up: GivenUp | None = None

    def begin(self, call: WorkflowCall, is_reverting: bool) -> None:
        """Begin or continue an attempt.

        :param is_reverting: whether the scope of the workflow is being reverted. An execution of an
            earlier run then only ends.
        """
        node = call.node
        run = self._new_run(call)
        if call.action == calls.REVERT:
            run.begin_reversion()
        elif self._given_up is not None or is_reverting:
            run.give_up(self._given_up or _REVERTED)
        self.running[node] = run
        self._changed[node] = None

    def _new_run(self, call: WorkflowCall) -> WorkflowRun:
        record, node = call.record, call.node
        recorded = self._records.recorded(record.uuid, latest_execution(record))
        return WorkflowRun(call, recorded, self._records, self._now, lambda: self._on_waiting(node))

    def _continue_as_new(self, run: WorkflowRun, outcome: calls.Outcome) -> None:
        """Replace an ended attempt by the next one, unless the run is halted.

        In that case, a later run repeats the end of the attempt.
        """
        if not self._is_halted:
            call = self._records.continue_as_new(run.call, outcome.value, self._now())
            self.running[call.node] = self._new_run(call)
            self._changed[call.node] = None

    def _on_waiting(self, node: int) -> None:
        self._woken.append(node)
        self._wake()

    def advance(self) -> Progress:
        """Deliver completions to functions, and begin the steps that they call.

        :raises NonDeterministicWorkflow: if a function does not repeat its recorded steps.
        """
        self._changed.update(dict.fromkeys(self._woken.popleft() for _ in range(len(self._woken))))
        progress = Progress([], [], [])
        now = self._now()
        while self._changed:
            node, _ = self._changed.popitem()
            run = self.running.get(node)
            if run is None:
                continue
            run.advance()
            if not self._is_halted:
                while run.to_begin:
                    progress.begun.append(run.begin_next(now))
            if run.must_withdraw:
                run.must_withdraw = False
                progress.ending.append(node)
            if run.outcome is not None and run.continues:
                self._continue_as_new(run, run.outcome)
            elif run.outcome is not None:
                progress.ended.append((run.call, run.outcome))
                del self.running[node]
        return progress

    def finish(self, call: calls.Invocation, outcome: calls.Outcome) -> None:
        """Store the outcome of a step."""
        self.running[call.node].finish(call.step, call, outcome)
        self._changed[call.node] = None

    def return_step(self, call: calls.Invocation) -> None:
        """Take back the call of a step that did not start."""
        self.running[call.node].return_step(call.step, call)
        self._changed[call.node] = None

    @property
    def extra_in_flight(self) -> int:
        """Number of steps and running functions in flight, minus the number of workflows."""
        return sum(run.in_flight + run.is_computing - 1 for run in self.running.values())

    @property
    def is_computing(self) -> bool:
        """Whether a function runs."""
        return any(run.is_computing for run in self.running.values())

    def halt(self) -> None:
        """Begin no more calls in this run."""
        self._is_halted = True
        for run in self.running.values():
            run.halt()

    def stop(self, reason: GivenUp) -> None:
        """Give up all workflows, because the run was cancelled or its deadline passed."""
        self._given_up = reason
        for node, run in self.running.items():
            run.give_up(reason)
            self._changed[node] = None

    def stop_for_revert(self, scope: range) -> list[int]:
        """Stop the executions in a scope that is reverted; return their nodes."""
        nodes = [
            node
            for node, run in self.running.items()
            if node in scope and run.call.action == calls.EXECUTE
        ]
        for node in nodes:
            self.running[node].give_up(_REVERTED)
            self._changed[node] = None
        return nodes

    def take_idle(self) -> list[tuple[WorkflowCall, bool]]:
        """Remove halted workflows without calls in flight, and return them.

        The bool is whether a later run has to continue the attempt.
        """
        return [self._drop(node) for node, run in list(self.running.items()) if run.is_idle]

    def drop_all(self) -> list[tuple[WorkflowCall, bool]]:
        """Remove and return all workflows. See `take_idle`."""
        return [self._drop(node) for node in list(self.running)]

    def _drop(self, node: int) -> tuple[WorkflowCall, bool]:
        run = self.running.pop(node)
        run.halt()
        return run.call, run.has_begun
