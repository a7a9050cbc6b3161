"""Simulated workers: requests run in the thread of the engine, with the rules of the ledger."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from wbengine import exceptions
from wbengine._calls import invocation as calls
from wbengine._runtime.executors.serial import SerialTaskExecutor
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.testing._crashing.killed import LostWorker
from wbengine.types import codec
from wbengine.types import failure as ft

__all__ = ["Fleet", "Hooks", "LocalExecutor", "RemoteExecutor"]


class Hooks(Protocol):
    """What a run does at the moments of a step. Exceptions end a process, see `killed`."""

    def sending(self, call: calls.Invocation) -> None: ...

    def starting(self, call: calls.Invocation) -> BaseException | None:
        """Return an exception that the step raises before its first line."""

    def running(self, call: calls.Invocation | None) -> None:
        """Observe which step runs from now on."""

    def ending(self, call: calls.Invocation, outcome: calls.Outcome, *, repeats: bool) -> bool:
        """Return whether a copy of the request runs as well; `repeats`: it may run twice."""

    def replying(self, call: calls.Invocation) -> None: ...

    def lost(self, call: calls.Invocation) -> None:
        """Observe that the worker of a step has ended, and that another one may begin."""

    def failed_by_loss(self, call: calls.Invocation) -> None:
        """Observe that a step fails because its worker was lost."""


@dataclass(slots=True)
class _Row:
    """A request in the ledger. A claimed one without an outcome was lost with its worker."""

    is_claimed: bool = False
    outcome: calls.Outcome | None = None
    resends: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    sender: RemoteExecutor
    call: calls.Invocation
    done: calls.Done


class Fleet:
    """The workers and the ledger, which outlive engines, and the requests of a process.

    The requests of all its engines wait in one order, for a worker or a reply.
    """

    def __init__(self, options: RequestOptions) -> None:
        self.options: Final = options
        self.rows: Final[dict[str, _Row]] = {}
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    def add(self, request: _Waiting) -> None:
        with self._lock:
            self._waiting.append(request)

    def run_next(self, sender: RemoteExecutor | None = None) -> bool:
        """Run the request that has waited longest. Return False if there is none.

        :param sender: only requests of this executor; None: of all.
        """
        with self._lock:
            found = next((each for each in self._waiting if sender in (None, each.sender)), None)
            if found is None:
                return False
            self._waiting.remove(found)
        found.sender.run(found)
        return True

    def remove(self, is_removed: Callable[[_Waiting], bool]) -> list[_Waiting]:
        """Remove requests, and return them."""
        with self._lock:
            removed = [each for each in self._waiting if is_removed(each)]
            self._waiting = [each for each in self._waiting if each not in removed]
            return removed

    def end_process(self) -> None:
        """Forget the requests of all engines."""
        with self._lock:
            self._waiting.clear()


class _Steps:
    """Runs steps, and calls the hooks around each one."""

    def __init__(self, hooks: Hooks, *, copies: bool) -> None:
        self.hooks: Final = hooks
        self._copies: Final = copies
        self._executor = SerialTaskExecutor()

    def run(self, call: calls.Invocation, *, repeats: bool) -> calls.Outcome:
        """Run a step and return its outcome."""
        error = self.hooks.starting(call)
        if error is not None:
            outcome = calls.Outcome(ft.Failure.from_exception(error))
            self.hooks.ending(call, outcome, repeats=False)
            return outcome
        outcome = self._outcome(call)
        if self.hooks.ending(call, outcome, repeats=repeats):
            self._outcome(call)
        return outcome

    def refused(self, call: calls.Invocation) -> calls.Outcome | None:
        """Return the outcome of a call that was cancelled or expired before it started."""
        if call.cancellation.cancelled or call.expired() is not None:
            return self._submitted(call)
        return None

    def stop(self) -> None:
        self._executor.stop()

    def _outcome(self, call: calls.Invocation) -> calls.Outcome:
        was_recovered, call.recovered = call.recovered, True  # It has started: it runs to its end.
        arguments = call.arguments
        if self._copies:
            call.arguments = copy.deepcopy(dict(arguments))  # A worker decodes its own ones.
        self.hooks.running(call)
        try:
            return self._submitted(call)
        finally:
            self.hooks.running(None)
            call.recovered, call.arguments = was_recovered, arguments

    def _submitted(self, call: calls.Invocation) -> calls.Outcome:
        received: list[calls.Outcome] = []
        self._executor.submit(call, lambda _, outcome: received.append(outcome))
        (outcome,) = received
        if not outcome.failed:
            outcome.value = _encoded(outcome.value, f"result of task {call.task.name!r}")
        return outcome


class LocalExecutor(calls.TaskExecutor):
    """Steps run in the process of the engine, and end with it."""

    immediate: bool = True

    def __init__(self, hooks: Hooks) -> None:
        self._steps = _Steps(hooks, copies=False)

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        refused = self._steps.refused(invocation)
        done(invocation, refused or self._steps.run(invocation, repeats=False))

    def stop(self) -> None:
        self._steps.stop()


class RemoteExecutor(calls.TaskExecutor):
    """Steps of an engine run on workers, with a ledger, when an engine waits (`run_next`)."""

    survives_engine: bool = True
    has_ledger: bool = True

    def __init__(self, hooks: Hooks, fleet: Fleet) -> None:
        self._steps = _Steps(hooks, copies=True)
        self._fleet = fleet

    def for_engine(self) -> RemoteExecutor:
        return RemoteExecutor(self._steps.hooks, self._fleet)

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        if _key(invocation) not in self._fleet.rows and not invocation.cancellation.cancelled:
            self._steps.hooks.sending(invocation)
            self._fleet.rows[_key(invocation)] = _Row()
        self._fleet.add(_Waiting(self, invocation, done))

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        for invocation in invocations:
            invocation.cancellation.cancel()

    def withdraw(self) -> list[calls.Invocation]:
        removed = self._fleet.remove(
            lambda each: each.sender is self and not self._row(each.call).is_claimed
        )
        for each in removed:
            self._fleet.rows.pop(_key(each.call), None)
        return [each.call for each in removed]

    def disown(self) -> None:
        self._fleet.remove(lambda each: each.sender is self)

    def finish(self) -> None:
        while self._fleet.run_next(self):
            pass

    def stop(self) -> None:
        self.finish()
        self._steps.stop()

    def run(self, waiting: _Waiting) -> None:
        waiting.done(waiting.call, self._result(waiting.call))

    def _result(self, call: calls.Invocation) -> calls.Outcome:
        row = self._row(call)
        if row.outcome is None and not row.is_claimed:
            refused = self._steps.refused(call)
            if refused is not None:
                return refused
            row.outcome = self._claimed(call, row)
        elif row.outcome is None:
            row.outcome = self._after_loss(call, row)
        self._steps.hooks.replying(call)
        return row.outcome

    def _row(self, call: calls.Invocation) -> _Row:
        return self._fleet.rows.setdefault(_key(call), _Row())

    def _claimed(self, call: calls.Invocation, row: _Row) -> calls.Outcome:
        row.is_claimed = True
        try:
            return self._steps.run(call, repeats=self._repeats(call))
        except LostWorker as loss:
            self._steps.hooks.lost(call)
            return self._after_loss(call, row, repeats=loss.repeats)

    def _after_loss(
        self, call: calls.Invocation, row: _Row, *, repeats: bool = False
    ) -> calls.Outcome:
        if not (repeats or self._repeats(call)):
            self._steps.hooks.failed_by_loss(call)
        elif row.resends < self._fleet.options.max_resends:
            row.resends += 1
            return self._claimed(call, row)
        text = f"The worker of task {call.task.name!r} was lost"
        return calls.Outcome(ft.Failure.from_exception(exceptions.WorkerLost(text)))

    def _repeats(self, call: calls.Invocation) -> bool:
        return self._fleet.options.repeats(call.task)


def _key(call: calls.Invocation) -> str:
    return calls.request_id(call.uuid, call.action, call.attempt, call.index, call.resumed)


def _encoded(value: Any, where: str) -> Any:
    """Return a value as another process reads it, or the failure to encode it."""
    try:
        return codec.loads(codec.dumps(value, where))
    except exceptions.NotEncodable as error:
        return ft.Failure.from_exception(error)
