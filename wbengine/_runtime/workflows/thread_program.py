"""The call of a plain workflow function: in its own thread, or only to replay its steps."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final

from wbengine import exceptions, steps
from wbengine._concurrency import conditions, contexts, threads
from wbengine._introspection import object_names
from wbengine._runtime.workflows.program import Program
from wbengine._runtime.workflows.workflow_loop import WorkflowLoop

__all__ = ["ReplayProgram", "ThreadProgram"]

LOG: Final = logging.getLogger(__name__)

#: Maximum time that `close` waits for the function.
_CLOSE_SECONDS: Final = 1.0


class ThreadProgram(Program):
    """A call of a plain function.

    The function and the engine take turns: only one of them uses this object at a time.

    :param on_waiting: called in the thread of the function when it waits or has ended, if `advance`
        has already returned.
    """

    #: Maximum time that `advance` waits for the function. Most functions call their next step in
    #: this time, so the result of a step and the start of the next one are one write.
    advance_seconds: ClassVar[float] = 0.02

    def __init__(self, *args: Any, on_waiting: Callable[[], object], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_waiting = on_waiting
        # Each is acquired to wait for a turn, and released to hand over that turn.
        self._turn_of_function, self._turn_of_engine = threading.Lock(), threading.Lock()
        self._turn_of_function.acquire()
        self._turn_of_engine.acquire()
        # Protects the next two attributes.
        self._lock = threading.Lock()
        self._is_running = False
        # Whether `advance` waits for the function.
        self._is_awaited = False
        self._ended = conditions.Event()
        self._thread: threading.Thread | None = None
        # Runs the coroutine that the function returned.
        self._loop: WorkflowLoop | None = None

    @property
    def is_computing(self) -> bool:
        return self._is_running

    def advance(self) -> None:
        self._is_running = self._is_awaited = True
        if self._thread is None:
            self._has_begun = True
            self._thread = threads.Thread(
                target=contexts.copy().run, args=(self._run,), name="workflow", daemon=True
            )
            self._thread.start()
        else:
            self._turn_of_function.release()
        if self._turn_of_engine.acquire(timeout=self.advance_seconds):
            return
        with self._lock:
            is_late, self._is_awaited = self._is_awaited, False
        if not is_late:  # The function returned the turn meanwhile.
            self._turn_of_engine.acquire()

    def close(self) -> None:
        self._is_closed = True
        if self._thread is None:
            return
        with self._lock:
            is_waiting = not (self._is_running or self._ended.is_set())
            if is_waiting:
                self._is_running = True
                self._turn_of_function.release()
        if not self._ended.wait(_CLOSE_SECONDS):
            LOG.warning(
                "The function of workflow %r did not end within %g s after its run: it continues"
                " until it calls a step",
                object_names.dotted(self._function),
                _CLOSE_SECONDS,
            )

    def _is_called_by_function(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            value = self._function(steps.Steps(self), **self._arguments)
            if inspect.iscoroutine(value):
                value = self._result_of(value)
        except BaseException as error:
            if not self._is_closed:
                self._fail(error)
        else:
            if not self._is_closed:
                self._end(value)
        self._ended.set()
        self._return_turn()

    def _result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine that the function returned. The steps that it calls block."""
        self._loop = WorkflowLoop(self.scopes.inherit)  # type: ignore[abstract]
        main = self._loop.create_task(coroutine)
        self._loop.run_ready()
        self._loop.close()
        if not main.done():
            raise RuntimeError(
                "The workflow waits forever: its coroutines wait for each other, and its steps"
                " block, because its function is not `async`"
            )
        return main.result()

    def _current_task(self) -> asyncio.Task[Any] | None:
        return None if self._loop is None else asyncio.current_task(self._loop)

    def _return_turn(self) -> None:
        with self._lock:
            self._is_running = False
            is_awaited, self._is_awaited = self._is_awaited, False
        if is_awaited:
            self._turn_of_engine.release()
        else:
            self._on_waiting()

    def _wait_for_turn(self) -> None:
        self._return_turn()
        self._turn_of_function.acquire()

    def wait(self) -> None:
        """Block the function until it has received a completion. Used by `Steps`.

        :raises RuntimeError: if no step is in progress, or in a fork.
        """
        self._check_caller()
        while not (self._is_closed or self._history.has_completions):
            if self._waits_for_no_step:
                raise RuntimeError("The workflow waits forever: no step is in progress")
            self._wait_for_turn()
        if self._is_closed:
            raise exceptions.WorkflowInterrupted("The run of the workflow has ended")
        self._deliver()


class ReplayProgram(ThreadProgram):
    """A call that ends when the function waits for a step without a result.

    It runs in the calling thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, on_waiting=_do_nothing, **kwargs)

    def advance(self) -> None:
        self._has_begun = True
        self._thread = threading.current_thread()
        contexts.copy().run(self._run)

    def close(self) -> None:
        self._is_closed = True

    def _return_turn(self) -> None:
        pass  # The engine and the function share a thread.

    def _wait_for_turn(self) -> None:
        self._is_closed = True
        raise exceptions.WorkflowInterrupted("The replay ends: the step has no result")


def _do_nothing() -> None:
    pass
