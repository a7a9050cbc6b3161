"""Context managers that can still be closed after Ctrl-C interrupted a `with` statement.

Ctrl-C can arrive in the first line of `__enter__` or `__exit__` of a context manager, which is
Python code. Then its generator does not continue, and its `finally` clauses do not run until it is
garbage collected. This may never happen, because the traceback refers to it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["Scope", "Scopes", "scope"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Scope(Generic[_T]):
    """A generator-based context manager, as of `contextlib.contextmanager`, with `close`."""

    __slots__ = ("_generator", "_manager")

    def __init__(self, generator: Generator[_T, None, None]) -> None:
        self._generator = generator
        self._manager = contextlib.contextmanager(lambda: generator)()

    def __enter__(self) -> _T:
        return self._manager.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._manager.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Raise `GeneratorExit` in the generator, unless it has ended."""
        self._generator.close()


def scope(function: Callable[_P, Iterator[_T]]) -> Callable[_P, Scope[_T]]:
    """Decorate a generator function like `contextlib.contextmanager`; it returns a `Scope`."""

    @functools.wraps(function)
    def make(*args: _P.args, **kwargs: _P.kwargs) -> Scope[_T]:
        return Scope(function(*args, **kwargs))  # type: ignore[arg-type]

    return make


class Scopes:
    """A stack of scopes. `close` ends each scope that its `with` statement did not end.

    Add each scope before it is entered. Call `close` in the `finally` clause of the outermost
    function.
    """

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: list[Scope[Any]] = []

    def add(self, scope: Scope[_T]) -> Scope[_T]:
        """Add a scope and return it, to be used in a `with` statement."""
        self._scopes.append(scope)
        return scope

    def close(self) -> None:
        """End the scopes that have not ended, innermost first."""
        scopes = self._scopes
        try:
            while scopes:
                scopes[-1].close()
                scopes.pop()
        finally:
            if scopes:  # One of them raised an exception. End the others too.
                scopes.pop()
                self.close()
