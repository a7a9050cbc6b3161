"""The call of an `async def` workflow, in the thread of the engine."""

from __future__ import annotations

import asyncio
import inspect
import time
import zlib
from collections.abc import Callable
from typing import Any

from wbengine import exceptions, steps
from wbengine._tasks.commands import Command
from wbengine.runtime.workflows import guards
from wbengine.runtime.workflows.event_loop import WorkflowLoop
from wbengine.runtime.workflows.program import Handle, Program

__all__ = ["AsyncProgram"]


class AsyncProgram(Program):
    """A call of an `async def` function, which may be behind plain decorators.

    Its coroutines run in the thread that calls `advance`, in the same order in each replay.

    :param clock: returns seconds, to measure how long the function runs until it awaits a step.
    """

    def __init__(
        self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock
        # The low bits, which order sets, are the same for all workflows.
        first_number = zlib.crc32(self.seed.encode()) << 20
        # asyncio uses only a few methods of an event loop.
        self._loop = WorkflowLoop(self.scopes.inherit, first_number)  # type: ignore[abstract]
        self._main: asyncio.Future[Any] = self._loop.create_future()

    def advance(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._loop.call_soon(self._call)
            self._run_ready()
        while not (self._main.done() or self._is_closed) and self._history.has_completions:
            try:
                self._deliver_to_future()
            except exceptions.WorkflowInterrupted:
                return
            self._run_ready()
        if self._is_closed or self.error is not None:
            return
        if self._main.done():
            self._end_as(self._main)
            self._loop.close()  # Other coroutines of the function may still wait.
        elif self._waits_for_no_step:
            self._fail(
                RuntimeError(
                    "The workflow waits forever: its coroutines wait for each other, and no step"
                    " is in progress"
                )
            )
            self._loop.close()

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
        started = self._clock()
        self._loop.run_ready()
        guards.check_turn(self._function, self._clock() - started)

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
