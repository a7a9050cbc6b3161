"""The call of an `async def` workflow, in the thread of the engine."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

from wbengine import exceptions, steps
from wbengine._concurrency import contexts, forks
from wbengine._introspection import object_names
from wbengine._runtime.workflows import guards
from wbengine._runtime.workflows.program import Handle, Program
from wbengine._runtime.workflows.workflow_loop import WorkflowLoop
from wbengine._tasks.commands import Command
from wbengine.types import failure as ft

__all__ = ["AsyncProgram"]

LOG: Final = logging.getLogger(__name__)


class AsyncProgram(Program):
    """A call of an `async def` function, which may be behind plain decorators.

    Its coroutines run in the thread that calls `advance`, in the same order in each replay. When
    the function returns or fails, the other coroutines are cancelled. The call is over when they
    have ended, too, so they can call steps to clean up.

    :param clock: returns seconds, to measure how long the function runs until it awaits a step.
    """

    def __init__(
        self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock
        # Each workflow has another number, but the low bits, which determine the order of sets, are
        # the same for all.
        first_number = zlib.crc32(self.seed.encode()) << 20
        # asyncio uses only a few methods of an event loop.
        self._loop = WorkflowLoop(self.scopes.inherit, first_number)  # type: ignore[abstract]
        self._main: asyncio.Future[Any] = self._loop.create_future()
        # Tasks that had not ended when the function returned or failed.
        self._remaining: list[asyncio.Task[Any]] = []

    def advance(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._loop.call_soon(self._call, context=contexts.copy())
            self._run_ready()
        while not (self._have_all_ended or self._is_closed) and self._history.has_completions:
            try:
                self._deliver_to_future()
            except exceptions.WorkflowInterrupted:
                return
            self._run_ready()
        if self._is_closed or self.error is not None:
            return
        if not (self._have_all_ended or self._waits_for_no_step):
            return
        if self._main.done():
            self._end_as(self._main)
        else:
            self._fail(
                RuntimeError(
                    "The workflow waits forever: its coroutines wait for each other, and no step"
                    " is in progress"
                )
            )
        for task in self._remaining:
            self._report_end(task)
        self._loop.close()

    @property
    def _have_all_ended(self) -> bool:
        return self._main.done() and not self._loop.has_tasks

    def _call(self) -> None:
        """Call the function. A plain decorator can raise, or replace the coroutine."""
        try:
            value = self._function(steps.AsyncSteps(self), **self._arguments)
        except Exception as error:
            self._main.set_exception(error)
        else:
            if inspect.isawaitable(value):
                self._main = asyncio.ensure_future(value)
            else:
                self._main.set_result(value)

    def _run_ready(self) -> None:
        was_done, started = self._main.done(), self._clock()
        self._run_loop()
        if self._continuation is not None and not self._main.done():
            self._main.cancel()  # Another coroutine continues as new.
            self._run_loop()
        if self._main.done() and not (was_done or self._is_closed):
            self._cancel_remaining(self._main)
            self._run_loop()
        guards.check_turn(self._function, self._clock() - started)

    def _run_loop(self) -> None:
        self._loop.run_ready()
        if forks.current_pid != self._pid:  # Steps complete only in the parent process.
            forks.end_fork(self._pid, _failure_of(self._main))

    def _cancel_remaining(self, main: asyncio.Future[Any]) -> None:
        self._remaining = self._loop.tasks
        # A second cancellation would interrupt the clean-up after an earlier one.
        waiting = [task for task in self._remaining if not task.cancelling()]
        has_returned = (
            self._continuation is None and not main.cancelled() and main.exception() is None
        )
        if waiting and has_returned and not self._history.is_replaying(self.called_count):
            LOG.warning(
                "The function of workflow %r returned without awaiting its coroutines %s, which"
                " are cancelled, and the results of its steps %s. Await them, for example with"
                " asyncio.TaskGroup",
                object_names.dotted(self._function),
                [_name_of(task) for task in waiting],
                [
                    each.command.name
                    for each in self._undelivered.values()
                    if not each.future.done()
                ],
            )
        for task in waiting:
            task.cancel()

    def _report_end(self, task: asyncio.Task[Any]) -> None:
        """Log that a coroutine did not end, or failed, after its cancellation."""
        if not task.done():
            error, event = None, "waits forever"
        elif not task.cancelled() and task.exception() is not None:
            error, event = task.exception(), "failed"
        else:
            return
        LOG.error(
            "Coroutine %s of workflow %r %s after its cancellation",
            _name_of(task),
            object_names.dotted(self._function),
            event,
            exc_info=error,
        )

    def _end_as(self, main: asyncio.Future[Any]) -> None:
        if main.cancelled():
            self._fail(asyncio.CancelledError("the workflow cancelled itself"))
            return
        error = main.exception()
        if error is None:
            self._end(main.result())
        else:
            self._fail(error)

    def _deliver_to_future(self) -> None:
        handle = self._deliver()
        if handle.future.done():  # The function cancelled it.
            return
        try:
            result = handle.result()
        except StopIteration as error:  # `await` would return its value
            wrapped = RuntimeError(f"Step {handle.position} raised StopIteration")
            wrapped.__cause__ = error
            handle.future.set_exception(wrapped)
        except Exception as error:
            handle.future.set_exception(error)
        else:
            handle.future.set_result(result)

    def close(self) -> None:
        self._is_closed = True
        if not self._loop.is_closed():
            self._loop.close()

    def _is_called_by_function(self) -> bool:
        # After the end of the run, its coroutines are closed outside the loop.
        return self._is_closed or asyncio.events._get_running_loop() is self._loop

    def _current_task(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self._loop)

    def start(self, command: Command) -> Handle:
        handle = super().start(command)
        handle.future = self._loop.create_future()
        return handle


def _failure_of(main: asyncio.Future[Any]) -> ft.Failure | None:
    if not main.done() or main.cancelled():
        return None
    error = main.exception()
    return None if error is None else ft.Failure.from_exception(error)


def _name_of(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", type(coroutine).__name__)
