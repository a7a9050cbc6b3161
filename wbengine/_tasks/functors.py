"""Tasks around callables that exist already."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from wbengine import _binding, _names, atom
from wbengine._tasks.base import Task


class FunctorTask(Task):
    """A task whose bodies are given callables.

    :param execute: called with what its signature asks for.
    :param name: by default the full name of `execute`.
    :param revert: called to undo, with what its signature asks for, `result` and `flow_failures`
        included.
    :param version: kept with the records of the task.
    :raises ValueError: not callable, or as for `Atom`.
    """

    # Users, workers and pickles know it by this name.
    __module__ = "wbengine.task"

    def __init__(
        self,
        execute: Callable[..., Any],
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        revert: Callable[..., Any] | None = None,
        version: Any = None,
        inject: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(execute):
            raise ValueError(f"Function to use for executing must be callable, not {execute!r}")
        if revert is not None and not callable(revert):
            raise ValueError(f"Function to use for reverting must be callable, not {revert!r}")
        self._execute = execute
        self._revert = revert
        if version is not None:
            self.version = version
        super().__init__(
            _names.dotted(execute) if name is None else name,
            provides,
            requires,
            auto_extract,
            rebind,
            inject,
        )
        if revert is None:
            self.revert_accepts = _binding.NO_NAMES

    def _bodies(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return self._execute, self.revert if self._revert is None else self._revert

    def _home(self) -> str:
        return _names.module_of(self._execute)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return self._execute(*args, **kwargs)

    def revert(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._revert is None else self._revert(*args, **kwargs)


def code_of(item: atom.Atom) -> str:
    """The dotted name of the function or the class that an atom is made of."""
    made: Any = type(item)
    if isinstance(item, FunctorTask) and hasattr(item._execute, "__qualname__"):
        made = item._execute
    return f"{made.__module__}.{made.__qualname__}"


class _FoldingTask(Task):
    """What `MapFunctorTask` and `ReduceFunctorTask` share: values by name, in the order asked."""

    _ARITY: ClassVar[int]
    _AT_LEAST: ClassVar[int]

    def __init__(
        self,
        functor: Callable[..., Any],
        requires: Iterable[str],
        name: str | None = None,
        provides: atom.Provides | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        inject: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(functor):
            raise ValueError(f"Functor must be callable, not {functor!r}")
        if _binding.is_async(functor):
            raise ValueError(
                f"Functor {_names.dotted(functor)} is an 'async def', and nobody would await it:"
                " write a task with an 'async def execute', or a Map over one"
            )
        self._check_arity(functor)
        if isinstance(requires, str) or not isinstance(requires, Iterable):
            raise TypeError(f"Requires must be an iterable of names, not {requires!r}")
        self._names = tuple(requires)
        if len(self._names) < self._AT_LEAST:
            raise ValueError(
                f"Requires must hold at least {self._AT_LEAST} names, not {list(self._names)}"
            )
        self._functor = functor
        super().__init__(
            _names.dotted(functor) if name is None else name,
            provides,
            self._names,
            auto_extract,
            # A list means the names asked for, in order: `execute` itself has no parameters.
            None if rebind is None else _binding.rebind_map(self._names, rebind),
            inject,
        )

    def _check_arity(self, functor: Callable[..., Any]) -> None:
        try:
            parameters = inspect.signature(functor).parameters.values()
        except (TypeError, ValueError):
            return  # Some builtins do not tell; calling them will.
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        needed = sum(p.default is p.empty for p in positional)
        needs_keyword = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
        room = len(positional)
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            room = max(room, self._ARITY)
        if needs_keyword or not needed <= self._ARITY <= room:
            raise ValueError(
                f"Functor {_names.dotted(functor)} must take exactly {self._ARITY}"
                f" argument{'s' if self._ARITY > 1 else ''}"
            )

    def _home(self) -> str:
        return _names.module_of(self._functor)

    def _values(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[name] for name in self._names]


class MapFunctorTask(_FoldingTask):
    """Applies a functor of one argument to each of the required values; a list, in that order.

    :raises ValueError: the functor cannot be called with one argument.
    :raises TypeError: `requires` is not an iterable of names.
    """

    # Users, workers and pickles know it by this name.
    __module__ = "wbengine.task"

    _ARITY = 1
    _AT_LEAST = 0

    def execute(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [self._functor(value) for value in self._values(kwargs)]


class ReduceFunctorTask(_FoldingTask):
    """Folds the required values (two at least) with a functor of two arguments, in that order.

    :raises ValueError: the functor cannot be called with two arguments, or fewer than two names.
    :raises TypeError: `requires` is not an iterable of names.
    """

    # Users, workers and pickles know it by this name.
    __module__ = "wbengine.task"

    _ARITY = 2
    _AT_LEAST = 2

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return functools.reduce(self._functor, self._values(kwargs))
