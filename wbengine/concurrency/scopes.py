"""`with` blocks that end also if an interrupt (Ctrl-C) comes just when they begin or end."""

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
    """Generator-based context manager, as `contextlib.contextmanager` makes it, with `close`."""

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
    """Decorate a generator function, as `contextlib.contextmanager` does; it returns a `Scope`."""

    @functools.wraps(function)
    def make(*args: _P.args, **kwargs: _P.kwargs) -> Scope[_T]:
        return Scope(function(*args, **kwargs))  # type: ignore[arg-type]

    return make


class Scopes:
    """Scopes that `close` ends if their `with` statement did not.

    An interrupt can arrive in the first line of `__enter__` or `__exit__` of a scope, which is
    Python code. Then nothing resumes the scope's generator. It ends when it is garbage collected,
    which may never happen, because the traceback refers to it. Add each scope before it is entered,
    and call `close` in the `finally` clause of the outermost function.
    """

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: list[Scope[Any]] = []

    def add(self, scope: Scope[_T]) -> Scope[_T]:
        """Return `scope`, to be entered."""
        self._scopes.append(scope)
        return scope

    def close(self) -> None:
        """End the scopes that have not ended, the innermost first."""
        scopes = self._scopes
        try:
            while scopes:
                scopes[-1].close()
                scopes.pop()
        finally:
            if scopes:  # One of them raised; the others end too.
                scopes.pop()
                self.close()
