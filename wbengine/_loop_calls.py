"""One call of a coroutine function in an event loop, and how it is interrupted."""

from __future__ import annotations

import asyncio
import contextvars
import os
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final

from wbengine import exceptions, limits
from wbengine.types import failure as ft

Function = Callable[..., Coroutine[Any, Any, Any]]
Done = Callable[[Any], None]

#: The value of a call that was cancelled before its first step.
NOT_BEGUN: Final = object()


class Ticket:
    """One submitted call.

    `cancelled` and `deadline` are as those of `pools.Ticket`.  `interruptible`: `interrupt` may be
    used.  `over`: it is settled who calls `done`.  `left`: nobody does, for what it does outside
    goes on, and is gone on with later.
    """

    __slots__ = (
        "_begun",
        "_pending",
        "_rung",
        "_told",
        "_unheard",
        "args",
        "cancelled",
        "context",
        "deadline",
        "done",
        "fn",
        "interruptible",
        "left",
        "limit",
        "over",
        "task",
        "timers",
        "value",
    )

    def __init__(
        self,
        fn: Function,
        args: tuple[Any, ...],
        done: Done,
        limit: limits.TimeLimit = limits.UNLIMITED,
        interruptible: bool = False,
    ) -> None:
        self.fn = fn
        self.args = args
        self.done = done
        self.limit = limit
        self.interruptible = interruptible or limit.soft is not None
        self.context = contextvars.copy_context()
        self.task: asyncio.Task[None] | None = None
        self.value: Any = NOT_BEGUN
        self.cancelled = False
        self.deadline: float | None = None
        self.over = False
        self.left = False
        #: What is called when it ends.
        self.timers: Sequence[Callable[[], object]] = ()
        self._begun = self._rung = self._told = self._unheard = False
        self._pending: BaseException | None = None

    async def run(self) -> None:
        pid = os.getpid()
        self._begun = True
        if self.cancelled:
            self.cancel()
        self.remind()
        try:
            if self.interruptible:
                self.value = await self._interruptibly(_awaited(self.fn, self.args))
            else:
                self.value = await self.fn(*self.args)
        except BaseException as error:
            self.value = ft.Failure.from_exception(error)
        if os.getpid() != pid:  # a fork that the call made, and that came out of it as well
            os._exit(0)

    # A task of asyncio that is cancelled before its first step never makes one: both wait for that.

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` where the coroutine waits, or as soon as it does; in the loop's thread."""
        self._pending = error
        self.remind()

    def expect(self, error: BaseException) -> bool:
        """Raise `error` where the coroutine waits first; any thread.

        False: it has begun by now, and is to be reminded.
        """
        self._pending = error
        return not self._begun

    def remind(self) -> None:
        """Raise what it has not heard of yet; in the loop's thread."""
        if self._pending is None or self._rung or not self._begun or self.task is None:
            return
        self._rung = True
        self.task.cancel()

    def cancel(self) -> None:
        """Cancel the coroutine where it waits, or as soon as it does; in the loop's thread.

        Idempotent: one that goes on all the same is not told again.
        """
        self.cancelled = True
        if self._begun and not self._told and self.task is not None:
            self._told = self._unheard = True
            self.task.cancel()

    @types.coroutine
    def _interruptibly(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await `coroutine`; what cancels its task as an interruption is told it as such."""
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                found = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
            except StopIteration as stop:
                return stop.value
            value = thrown = None
            try:
                value = yield found
            except BaseException as error:
                thrown = error
            if self._pending is None:
                self._unheard = False
                continue
            thrown, self._pending = self._pending, None
            # Since Python 3.11, tasks count how often they were cancelled.
            uncancel = getattr(self.task, "uncancel", int)
            if self._rung:
                self._rung = False
                uncancel()
            if self._unheard and self.task is not None:  # what is told twice at once is heard once
                uncancel()
                self.task.cancel()


async def _awaited(fn: Function, args: tuple[Any, ...]) -> Any:
    return await fn(*args)


def cancelled() -> ft.Failure:
    """What stands for a call that was cancelled before it began."""
    return ft.Failure.from_exception(exceptions.Cancelled("it was cancelled before it began"))


def overdue(limit: limits.TimeLimit) -> ft.Failure:
    """What stands for a call whose hard limit is over."""
    message = f"the coroutine did not end within its hard limit of {limit.hard or 0.0:g} s"
    return ft.Failure.from_exception(exceptions.TimeLimitExceeded(message))
