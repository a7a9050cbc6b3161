"""The open scopes of a workflow function."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, Generic, TypeVar

__all__ = ["OpenScopes", "Scope"]

HandleT = TypeVar("HandleT")

_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
#: Functions that enter a context manager for a block of their caller.
_ENTER: Final = frozenset({"__enter__", "__aenter__", "enter_context", "enter_async_context"})

#: The task that entered a scope in this context. Callbacks of the task have no current task.
_entering_task: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar(
    "wbengine.entering_task", default=None
)


class Scope(Generic[HandleT]):
    """A block of `steps.scope()`, with the handles of its steps."""

    def __init__(self) -> None:
        self.steps: list[HandleT] = []
        self.has_failed = False


class OpenScopes:
    """The open scopes of a workflow function, by the generator or `asyncio` task that entered them.

    A context variable would not do, because the caller of a suspended generator shares its context.

    :param task: returns the current task; None in a plain function.
    """

    def __init__(self, task: Callable[[], asyncio.Task[Any] | None]) -> None:
        self._task = task
        # The keys of generators are their frames. The key of a plain function is None.
        self._scopes: dict[FrameType | asyncio.Task[Any] | None, list[Scope[Any]]] = {}

    @contextlib.contextmanager
    def enter(self, scope: Scope[Any]) -> Iterator[None]:
        """Enter a new scope, which fails if an exception leaves the block."""
        task = self._task()
        _entering_task.set(task)
        owner = _entering_generator() or task
        self._scopes.setdefault(owner, []).append(scope)
        try:
            yield
        except (Exception, asyncio.CancelledError):
            scope.has_failed = True
            raise
        finally:
            others = [each for each in self._scopes.pop(owner, ()) if each is not scope]
            if others:
                self._scopes[owner] = others

    @property
    def are_open(self) -> bool:
        """Whether any scope is open."""
        return bool(self._scopes)

    def current(self) -> list[Scope[Any]]:
        """Return the scopes to which a step that starts now belongs."""
        if not self._scopes:
            return []
        scopes = list(self._scopes.get(self._task() or _entering_task.get(), ()))
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            scopes += self._scopes.get(frame, ())
            frame = frame.f_back
        return scopes

    def inherit(self, task: asyncio.Task[Any]) -> None:
        """Add a new task to the scopes in which it is created."""
        scopes = self.current()
        if scopes:
            self._scopes[task] = scopes
            task.add_done_callback(lambda _: self._scopes.pop(task, None))


def _entering_generator() -> FrameType | None:
    """Return the frame of the generator that contains the block of a new scope, or None.

    If a generator is the body of a context manager, its caller contains the block.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_back
        if not frame.f_code.co_flags & _GENERATOR:
            if frame.f_code.co_name not in _ENTER:
                return None
        elif caller is None or caller.f_code.co_name not in _ENTER:
            return frame
        frame = caller
    return None
