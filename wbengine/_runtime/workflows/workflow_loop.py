"""An asyncio event loop in which the order of events is the same in each replay."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Reversible
from typing import Any, Final, NoReturn

from wbengine import exceptions

__all__ = ["WorkflowLoop"]

LOG: Final = logging.getLogger(__name__)

#: Maximum number of waits of a coroutine that is closed, for example in nested task groups.
_MAX_CLOSE_CALLS: Final = 100

_AS_COMPLETED: Final = asyncio.as_completed.__code__


class WorkflowFuture(asyncio.Future[Any]):
    """A future with a number as hash: sets of futures have the same order in each replay."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class WorkflowTask(asyncio.Task[Any]):
    """A task with a number as hash: sets of tasks have the same order in each replay."""

    def __init__(self, number: int, coro: Any, **kwargs: Any) -> None:
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs the coroutines of one workflow in the thread that calls `run_ready`.

    Callbacks run in the order in which they were added. Timers, threads and sockets are refused.

    :param on_task: called with each new task.
    :param first_number: the hash of the first task or future. asyncio keeps the tasks of all loops
        in one set, which is slow if many of them have the same hash.
    """

    def __init__(
        self, on_task: Callable[[asyncio.Task[Any]], object], first_number: int = 0
    ) -> None:
        self._on_task = on_task
        self._numbers = itertools.count(first_number)
        self._task_count = 0
        # Handles with their callbacks, arguments and contexts.
        self._ready: deque[tuple[asyncio.Handle, Callable[..., Any], Any, Any]] = deque()
        # Tasks that have not ended.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        # Those of them that close generators.
        self._closing: set[asyncio.Task[Any]] = set()
        # Tasks that `asyncio.as_completed` will request, by their coroutines.
        self._created_early: dict[Any, asyncio.Task[Any]] = {}
        self._is_running = False
        self._is_closed = False

    def run_ready(self) -> None:
        """Run callbacks until none is ready: all coroutines wait, or have ended."""
        outer, outer_hooks = asyncio.events._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio.events._set_running_loop(self)
        sys.set_asyncgen_hooks(None, self._close_generator)
        self._is_running = True
        try:
            while self._ready:
                handle, callback, args, context = self._ready.popleft()
                if not handle.cancelled():
                    context.run(callback, *args)
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*outer_hooks)
            asyncio.events._set_running_loop(outer)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close a generator that was not read to its end, which may await steps to clean up."""
        closing: Any = generator.aclose()
        if asyncio.events._get_running_loop() is self:
            task = self._create_task(closing)
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        else:  # The run has ended.
            with contextlib.suppress(StopIteration, exceptions.WorkflowInterrupted):
                closing.send(None)

    def close(self) -> None:
        """End all coroutines: they receive `WorkflowInterrupted` where they wait."""
        self._is_closed = True
        self._ready.clear()
        for task in list(self._tasks):
            coroutine = task.get_coro()
            if not task.done() and coroutine is not None:
                try:
                    _close(coroutine)
                except* exceptions.WorkflowInterrupted:
                    pass
                except* BaseException:
                    LOG.warning("A workflow raised an exception when its run ended", exc_info=True)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append((handle, callback, args, context))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return WorkflowFuture(next(self._numbers), loop=self)

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        if coro not in self._created_early:
            for each in _in_order(coro):
                self._created_early[each] = self._create_task(each, **kwargs)
        return self._created_early.pop(coro)

    def _create_task(self, coro: Any, *, name: str | None = None, **kwargs: Any) -> WorkflowTask:
        self._task_count += 1
        # The default name contains the number of tasks in this process.
        name = f"Task-{self._task_count}" if name is None else name
        task = WorkflowTask(next(self._numbers), coro, loop=self, name=name, **kwargs)
        self._tasks[task] = None
        self._on_task(task)
        task.add_done_callback(self._tasks.pop)
        return task

    @property
    def has_tasks(self) -> bool:
        """Whether a task has not ended."""
        return bool(self._tasks)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that have not ended, oldest first, except those that close generators."""
        return [task for task in self._tasks if task not in self._closing]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_closed:
            LOG.error("%s", context.get("message"), exc_info=context.get("exception"))

    def time(self) -> float:
        raise _not_available(
            "asyncio.timeout and the time of the event loop",
            "timelimit= of a task, the timeout of a wait or steps.now()",
        )

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, **kwargs: Any
    ) -> NoReturn:
        raise _not_available(
            "asyncio.sleep, asyncio.wait_for and other timers",
            "await steps.sleep(seconds), timelimit= of a task or the timeout of a wait",
        )

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, **kwargs: Any
    ) -> NoReturn:
        raise _not_available("timers of the event loop", "await steps.sleep(seconds)")

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, **kwargs: Any
    ) -> NoReturn:
        raise _not_available("threads", "await steps.run(task)")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> NoReturn:
        raise _not_available("threads", "await steps.run(task)")


def _close(coroutine: Any) -> None:
    """End a coroutine, which may wait again a few times: each `asyncio.TaskGroup` waits once.

    `coroutine.close()` would raise RuntimeError in the callers of a coroutine that waits again.

    :raises RuntimeError: if it does not end.
    """
    for _ in range(_MAX_CLOSE_CALLS):
        try:
            coroutine.throw(exceptions.WorkflowInterrupted("The run of the workflow has ended"))
        except StopIteration:
            return
    raise RuntimeError(f"{coroutine!r} does not end")


def _in_order(coroutine: Any) -> Iterable[Any]:
    """Return the coroutines for which the caller of `create_task` creates tasks.

    These are several in `asyncio.as_completed`: it iterates over a set of them, whose order depends
    on their addresses. The order of the tasks must be that of its argument.

    :raises RuntimeError: if this argument has no order.
    """
    frame = sys._getframe(2)
    while frame.f_globals is asyncio.as_completed.__globals__:
        if frame.f_code is _AS_COMPLETED:
            awaitables = frame.f_locals[_AS_COMPLETED.co_varnames[0]]
            coroutines = dict.fromkeys(_coroutines_in(awaitables))
            if coroutine not in coroutines:
                raise _not_available(
                    f"asyncio.as_completed with this {type(awaitables).__name__}",
                    "a list of coroutines or tasks",
                )
            return coroutines
        assert frame.f_back is not None
        frame = frame.f_back
    return (coroutine,)


def _coroutines_in(awaitables: Any) -> Iterator[Any]:
    if isinstance(awaitables, Reversible):
        yield from filter(asyncio.iscoroutine, awaitables)


def _not_available(what: str, replacement: str) -> RuntimeError:
    return RuntimeError(
        f"A workflow cannot use {what}, because a replay could not repeat it: use {replacement}"
    )
