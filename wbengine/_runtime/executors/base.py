"""Common parts of the executors on this host."""

from __future__ import annotations

import abc
import contextvars
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine import exceptions, running
from wbengine._calls import invocation as calls
from wbengine._concurrency import interrupts, time_limits
from wbengine._runtime import strict as strictness
from wbengine.types import failure as ft

__all__ = [
    "CANCEL_GRACE_SECONDS",
    "LocalTaskExecutor",
    "limit_of",
    "limited",
    "outcome_of",
    "report_begin",
]

#: Seconds that a cancelled task in a process may still run before the process is killed.
CANCEL_GRACE_SECONDS: Final = 10.0


class LocalTaskExecutor(calls.TaskExecutor):
    """Base of executors that run tasks in pools of threads or processes on this host.

    :param strict: refuse arguments and results that could not be sent to a worker.
    :param limit: time limit of tasks without a `timelimit`.
    """

    def __init__(
        self, *, strict: bool = False, limit: time_limits.TimeLimit = time_limits.UNLIMITED
    ) -> None:
        self._strict = strict
        self._limit = limit

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        refusal_outcome = strictness.refused(invocation) if self._strict else None
        if refusal_outcome is not None:
            done(invocation, refusal_outcome)
            return
        if invocation.action == calls.REVERT and strictness.was_not_sent(invocation.result):
            # The execution failed because its result cannot be sent: there is nothing to revert.
            done(invocation, calls.Outcome(None))
            return
        invocation.context = contextvars.copy_context()  # The threads of pools have other ones.
        try:
            self._begin(invocation, done)
        except Exception as error:
            done(invocation, calls.Outcome(ft.Failure.from_exception(error)))

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        for invocation in invocations:
            invocation.cancellation.cancel()

    def disown(self) -> None:
        self.withdraw()  # no other process can see the queued calls

    @abc.abstractmethod
    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        """Start the call; raise an exception if it cannot start."""


def limit_of(invocation: calls.Invocation, default: time_limits.TimeLimit) -> time_limits.TimeLimit:
    timelimit = invocation.task.timelimit
    if timelimit is None:
        return default
    return time_limits.read(timelimit, f"the timelimit of task {invocation.task.name!r}")


def limited(
    limit: time_limits.TimeLimit, name: str, invoke: Callable[..., calls.Outcome], *args: Any
) -> calls.Outcome:
    """Return the outcome of `invoke(*args)`, which runs the task `name` in this thread.

    After the hard limit, an exception is raised in the task. If the task handles it, or does not
    receive it in time, the outcome is `TimeLimitExceeded` nevertheless, unless it is an
    interruption.
    """
    expired = []

    def expire(interrupt: interrupts.Interrupt) -> None:
        expired.append(True)  # before the delivery, which may end the task at once
        interrupt.deliver(exceptions.TimeLimitExceeded)

    outcome = outcome_of(interrupts.limited(limit, invoke, args, expire))
    if not expired or calls.interrupted(outcome):
        return outcome
    value = outcome.value
    if not (outcome.failed and value.check(exceptions.TimeLimitExceeded)):
        overdue = exceptions.TimeLimitExceeded(
            f"task {name!r} did not end within its hard limit of {limit.hard or 0.0:g} s"
        )
        overdue.__cause__ = value.exception if outcome.failed else None
        outcome.value = ft.Failure.from_exception(overdue)
    return outcome


def report_begin(invocation: calls.Invocation, *, requests_write: bool = True) -> None:
    """Report that a call began. With `requests_write`, this is stored soon."""
    began = getattr(invocation.events, "began", None)
    if began is not None:
        began(running.LOCAL, requests_write)


def outcome_of(value: Any) -> calls.Outcome:
    return value if isinstance(value, calls.Outcome) else calls.Outcome(value)
