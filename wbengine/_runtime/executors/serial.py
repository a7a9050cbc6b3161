"""An executor that runs tasks in the thread of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from wbengine import exceptions
from wbengine._calls import invocation as calls
from wbengine._concurrency import event_loop, time_limits
from wbengine._runtime import strict as strictness
from wbengine._runtime.executors import base
from wbengine.types import failure as ft

__all__ = ["SerialTaskExecutor"]


class SerialTaskExecutor(calls.TaskExecutor):
    """Runs each task immediately, in the submitting thread, in the order of submission.

    Async bodies run in an event loop of the executor, one after the other.

    An interruption of a task (`invocation.raise_interruption`) is not an outcome; `submit` raises
    it.

    When a time limit is exceeded, its exception (`SoftTimeLimitExceeded`, then `TimeLimitExceeded`)
    is raised in the task between two Python instructions. Nothing else can end a task here: after
    the hard limit, it fails when it returns.
    """

    #: Tasks run in the process of the engine, so their own notifiers have received their events.
    in_process: ClassVar[bool] = True
    immediate: bool = True

    def __init__(
        self, *, strict: bool = False, limit: time_limits.TimeLimit = time_limits.UNLIMITED
    ) -> None:
        self._loop = event_loop.EventLoop()
        self._strict = strict
        self._limit = limit

    def stop(self) -> None:
        # The next run gets a new loop, because an interrupt may end the wait for this one.
        loop, self._loop = self._loop, event_loop.EventLoop()
        loop.stop()

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        for invocation in invocations:
            invocation.cancellation.cancel()

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        if invocation.cancellation.cancelled and not invocation.recovered:
            invocation.cancellation.prevented = True
            refusal = exceptions.Cancelled(f"Task {invocation.task.name!r} was cancelled")
            done(invocation, calls.Outcome(ft.Failure.from_exception(refusal)))
            return
        if invocation.not_after is not None and (expired := invocation.expired()) is not None:
            done(invocation, expired)
            return
        # No write only for the start: it is stored with the next write. But a step with a limit is
        # RUNNING before it has a permit.
        is_limited = invocation.step is not None and invocation.step.note.limit is not None
        base.report_begin(invocation, requests_write=is_limited)
        invoke = calls.invoke
        if self._strict:
            invoke = strictness.invoke
            refused = strictness.refused(invocation)
            if refused is not None:
                done(invocation, refused)
                return
        if self._limit is time_limits.UNLIMITED and invocation.task.timelimit is None:
            outcome = invoke(invocation, self._loop)
        else:
            outcome = self._limited(invoke, invocation)
        if isinstance(outcome.value, ft.Failure):  # saves a call for each task that succeeds
            calls.raise_interruption(outcome)
        done(invocation, outcome)

    def _limited(
        self, invoke: Callable[..., calls.Outcome], invocation: calls.Invocation
    ) -> calls.Outcome:
        try:
            limit = base.limit_of(invocation, self._limit)
        except (TypeError, ValueError) as error:
            return calls.Outcome(ft.Failure.from_exception(error))
        if limit.hard is not None:
            invocation.cancellation.deadline = time.time() + limit.hard
        return base.limited(limit, invocation.task.name, invoke, invocation, self._loop)
