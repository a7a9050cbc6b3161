"""Simulated workers: requests run in the thread of the engine, with the rules of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from wbengine import exceptions
from wbengine._calls import invocation as calls
from wbengine._runtime.executors.serial import SerialTaskExecutor
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.testing._crashing.killed import LostWorker
from wbengine.types import failure as ft

__all__ = ["Fleet", "Hooks", "LocalExecutor", "RemoteExecutor"]


class Hooks(Protocol):
    """What a run does at the moments of a step. Exceptions end a process, see `killed`."""

    def sending(self, call: calls.Invocation) -> None: ...

    def starting(self, call: calls.Invocation) -> BaseException | None:
        """Return an exception that the step raises before its first line."""

    def ending(self, call: calls.Invocation, outcome: calls.Outcome, *, repeats: bool) -> bool:
        """Return whether a copy of the request runs as well; `repeats`: it may run twice."""

    def replying(self, call: calls.Invocation) -> None: ...

    def lost(self, call: calls.Invocation) -> None:
        """Observe that the worker of a step was lost."""


@dataclass(slots=True)
class _Row:
    """A request in the ledger; without an outcome, a worker claimed it and was lost."""

    outcome: calls.Outcome | None = None
    resends: int = 0


class Fleet:
    """The workers and the ledger, which outlive engines."""

    def __init__(self, options: RequestOptions) -> None:
        self.options: Final = options
        self.rows: Final[dict[str, _Row]] = {}


class _Executor(SerialTaskExecutor):
    """Calls the hooks around each step."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__()
        self._hooks = hooks

    def _run(self, call: calls.Invocation, *, repeats: bool) -> calls.Outcome:
        """Run a step and return its outcome."""
        error = self._hooks.starting(call)
        if error is not None:
            outcome = calls.Outcome(ft.Failure.from_exception(error))
            self._hooks.ending(call, outcome, repeats=False)
            return outcome
        outcome = self._outcome(call)
        if self._hooks.ending(call, outcome, repeats=repeats):
            self._outcome(call)
        return outcome

    def _outcome(self, call: calls.Invocation) -> calls.Outcome:
        received: list[calls.Outcome] = []
        was_recovered, call.recovered = call.recovered, True  # It has started: it runs to its end.
        try:
            super().submit(call, lambda _, outcome: received.append(outcome))
        finally:
            call.recovered = was_recovered
        return received[0]


class LocalExecutor(_Executor):
    """Steps run in the process of the engine, and end with it."""

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        done(invocation, self._run(invocation, repeats=False))


class RemoteExecutor(_Executor):
    """Steps run on workers, with a ledger."""

    survives_engine: bool = True
    has_ledger: bool = True

    def __init__(self, hooks: Hooks, fleet: Fleet) -> None:
        super().__init__(hooks)
        self._fleet = fleet

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        call, rows = invocation, self._fleet.rows
        key = calls.request_id(call.uuid, call.action, call.attempt, call.index, call.resumed)
        row = rows.get(key)
        if row is None:
            if call.cancellation.cancelled or call.expired() is not None:
                super().submit(call, done)
                return
            self._hooks.sending(call)
            if call.cancellation.cancelled:
                super().submit(call, done)
                return
            row = rows[key] = _Row()
            row.outcome = self._claimed(call, row)
        elif row.outcome is None:
            row.outcome = self._after_loss(call, row)
        self._hooks.replying(call)
        done(call, row.outcome)

    def _claimed(self, call: calls.Invocation, row: _Row) -> calls.Outcome:
        try:
            return self._run(call, repeats=self._repeats(call))
        except LostWorker:
            return self._after_loss(call, row)

    def _after_loss(self, call: calls.Invocation, row: _Row) -> calls.Outcome:
        self._hooks.lost(call)
        if self._repeats(call) and row.resends < self._fleet.options.max_resends:
            row.resends += 1
            return self._claimed(call, row)
        text = f"The worker of task {call.task.name!r} was lost"
        return calls.Outcome(ft.Failure.from_exception(exceptions.WorkerLost(text)))

    def _repeats(self, call: calls.Invocation) -> bool:
        return self._fleet.options.repeats(call.task)
