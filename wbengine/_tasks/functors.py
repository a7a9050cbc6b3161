"""Tasks that call existing callables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from wbengine import atom
from wbengine._calls import invocation
from wbengine._introspection import binding, object_names
from wbengine._tasks.base import Task


class FunctorTask(Task):
    """A task that calls given callables.

    :param execute: called with the arguments of its signature.
    :param name: default: the full name of `execute`.
    :param revert: called to undo, with the arguments of its signature, which may include `result`
        and `flow_failures`.
    :param version: stored with the records of the task.
    :raises ValueError: if a value is not callable, or as for `Atom`.
    """

    __module__ = "wbengine.task"

    def __init__(
        self,
        execute: Callable[..., Any],
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
        revert: Callable[..., Any] | None = None,
        version: Any = None,
        inject: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(execute):
            raise ValueError(f"Function to use for executing must be callable, got {execute!r}")
        if revert is not None and not callable(revert):
            raise ValueError(f"Function to use for reverting must be callable, got {revert!r}")
        self._execute = execute
        self._revert = revert
        if version is not None:
            self.version = version
        super().__init__(
            object_names.dotted(execute) if name is None else name,
            provides,
            requires,
            auto_extract,
            rebind,
            inject,
        )
        if revert is None:
            self.revert_accepts = binding.NO_NAMES

    def _bodies(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return self._execute, self.revert if self._revert is None else self._revert

    def _home(self) -> str:
        return object_names.module_of(self._execute)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return self._execute(*args, **kwargs)

    def revert(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._revert is None else self._revert(*args, **kwargs)


def code_of(item: atom.Atom) -> str:
    """Return the dotted name of the function or class of an atom."""
    cls: Any = type(item)
    if isinstance(item, FunctorTask) and hasattr(item._execute, "__qualname__"):
        cls = item._execute
    return f"{cls.__module__}.{cls.__qualname__}"


def has_revert(item: Any) -> bool:
    """Return whether the reversion of a task or Map has an effect."""
    inner = getattr(item, "inner", item)
    if isinstance(inner, FunctorTask) and inner._revert is None:
        return False
    return not invocation.reverts_nothing(type(inner))


class _FoldingTask(Task):
    """Base class of tasks that process required values in order."""

    _ARITY: ClassVar[int]
    _AT_LEAST: ClassVar[int]

    def __init__(
        self,
        functor: Callable[..., Any],
        requires: Iterable[str],
        name: str | None = None,
        provides: atom.Provides | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
        inject: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(functor):
            raise ValueError(f"Functor must be callable, got {functor!r}")
        if binding.is_async(functor):
            raise ValueError(
                f"Functor {object_names.dotted(functor)} must not be an 'async def', because it"
                " is called without await: write a task with an 'async def execute', or a"
                " Map over one"
            )
        self._check_arity(functor)
        if isinstance(requires, str) or not isinstance(requires, Iterable):
            raise TypeError(f"requires must be an iterable of names, got {requires!r}")
        self._names = tuple(requires)
        if len(self._names) < self._AT_LEAST:
            raise ValueError(
                f"requires must contain at least {self._AT_LEAST} names, got {list(self._names)}"
            )
        self._functor = functor
        super().__init__(
            object_names.dotted(functor) if name is None else name,
            provides,
            self._names,
            auto_extract,
            # `execute` has no named parameters. A list in `rebind` refers to the required names.
            None if rebind is None else binding.rebind_map(self._names, rebind),
            inject,
        )

    def _check_arity(self, functor: Callable[..., Any]) -> None:
        try:
            parameters = inspect.signature(functor).parameters.values()
        except (TypeError, ValueError):
            return  # Some builtins have no signature. A wrong call raises an exception later.
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
                f"Functor {object_names.dotted(functor)} must take exactly {self._ARITY}"
                f" argument{'s' if self._ARITY > 1 else ''}"
            )

    def _home(self) -> str:
        return object_names.module_of(self._functor)

    def _values(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[name] for name in self._names]


class MapFunctorTask(_FoldingTask):
    """Applies a functor of one argument to each required value. The result is a list, in order.

    :raises ValueError: if the functor cannot be called with one argument.
    :raises TypeError: if `requires` is not an iterable of names.
    """

    __module__ = "wbengine.task"

    _ARITY = 1
    _AT_LEAST = 0

    def execute(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [self._functor(value) for value in self._values(kwargs)]


class ReduceFunctorTask(_FoldingTask):
    """Folds two or more required values with a functor of two arguments, in order.

    :raises ValueError: if the functor cannot be called with two arguments, or there are fewer than
        two names.
    :raises TypeError: if `requires` is not an iterable of names.
    """

    __module__ = "wbengine.task"

    _ARITY = 2
    _AT_LEAST = 2

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return functools.reduce(self._functor, self._values(kwargs))
