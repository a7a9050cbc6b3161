"""Tasks: atoms that do the work of a flow.

Write a class with an `execute` method (and `revert`, if there is something to undo), or put `@task`
above a function; `FunctorTask` and its relatives wrap callables that exist already.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeVar, cast, overload

from wbengine import _binding, _names, atom
from wbengine.atom import REVERT_FLOW_FAILURES as REVERT_FLOW_FAILURES
from wbengine.atom import REVERT_RESULT as REVERT_RESULT
from wbengine.types import notifier as nt

__all__ = [
    "EVENT_UPDATE_PROGRESS",
    "REVERT_FLOW_FAILURES",
    "REVERT_RESULT",
    "FunctionTask",
    "FunctorTask",
    "MapFunctorTask",
    "ReduceFunctorTask",
    "Task",
    "task",
]

LOG = logging.getLogger(__name__)

#: The event behind `Task.update_progress`; its details are `{'progress': 0.0 to 1.0}`.
EVENT_UPDATE_PROGRESS: Final = "update_progress"

#: What `@task` passes on to the constructor of every instance.
_OPTIONS: Final = frozenset(
    [
        "requires",
        "rebind",
        "inject",
        "auto_extract",
        "ignore_list",
        "revert_rebind",
        "revert_requires",
    ]
)

_T = TypeVar("_T", bound="Task")


class Task(atom.Atom):
    """An atom that may run anywhere: in this thread, in a pool, on a worker.

    The parameters are those of `Atom`; the default name is the full name of the class, so two
    unnamed tasks of one class cannot be in the same flow.
    """

    #: The events that `notifier` knows; a subclass extends it to tell its own.
    TASK_EVENTS: ClassVar[Collection[str]] = frozenset([EVENT_UPDATE_PROGRESS])

    #: Does it do no harm to run it twice?  Not acted upon yet: a task whose worker was lost fails.
    idempotent: bool | None = None
    #: Must it run in the engine's own process?
    local: bool = False

    # Made on first use: most tasks have no listener.
    _notifier: nt.RelayingNotifier | None = None
    _sink: nt.Sink | None = None

    def __init__(
        self,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        inject: Mapping[str, Any] | None = None,
        ignore_list: Iterable[str] | None = None,
        revert_rebind: _binding.Rebind | None = None,
        revert_requires: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(
            self._default_name() if name is None else name,
            provides,
            requires,
            auto_extract,
            rebind,
            inject,
            ignore_list,
            revert_rebind,
            revert_requires,
        )

    def _default_name(self) -> str:
        return _names.class_name(type(self))

    @property
    def notifier(self) -> nt.RestrictedNotifier:
        """Where to listen to what the task tells while it runs."""
        found = self._notifier
        if found is None:
            made = nt.RelayingNotifier(self.TASK_EVENTS, self._sink)
            # Two threads may come here at once: both must get the same one.
            found = cast(nt.RelayingNotifier, self.__dict__.setdefault("_notifier", made))
            found.sink = self._sink
        return found

    def attach(self, sink: nt.Sink) -> None:
        """Pass every event to `sink(event_type, details)` as well, after the listeners."""
        self._sink = sink
        if self._notifier is not None:
            self._notifier.sink = sink

    def detach(self) -> None:
        """Forget the sink; idempotent."""
        self._sink = None
        if self._notifier is not None:
            self._notifier.sink = None

    def update_progress(self, progress: float) -> None:
        """Tell how far the task is, from 0.0 to 1.0; what is outside is clamped, with a warning."""
        clamped = progress if 0.0 <= progress <= 1.0 else (1.0 if progress > 1.0 else 0.0)
        if clamped != progress:
            LOG.warning("Progress of %s must be from 0.0 to 1.0, not %r", self.name, progress)
        if self._notifier is not None:
            self._notifier.notify(EVENT_UPDATE_PROGRESS, {"progress": clamped})
        elif self._sink is not None:
            nt.relay(self._sink, EVENT_UPDATE_PROGRESS, {"progress": clamped})

    def copy(self: _T, retain_listeners: bool = True) -> _T:
        """A shallow copy, with or without the listeners of the original."""
        other = copy.copy(self)
        if retain_listeners and self._notifier is not None:
            other._notifier = cast(nt.RelayingNotifier, self._notifier.copy())
            other._notifier.sink = None
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Listeners and sink belong to the process that registered them.
        state = self.__dict__.copy()
        state.pop("_notifier", None)
        state.pop("_sink", None)
        return state


class FunctorTask(Task):
    """A task whose bodies are given callables.

    :param execute: called with what its signature asks for.
    :param name: by default the full name of `execute`.
    :param revert: called to undo, with what its signature asks for, `result` and `flow_failures`
        included.
    :param version: kept with the records of the task.
    :raises ValueError: not callable, or as for `Atom`.
    """

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

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return self._execute(*args, **kwargs)

    def revert(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._revert is None else self._revert(*args, **kwargs)


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
        if isinstance(requires, str) or not isinstance(requires, Iterable):
            raise TypeError(f"Requires must be an iterable of names, not {requires!r}")
        self._names = tuple(requires)
        if len(self._names) < self._AT_LEAST:
            raise ValueError(
                f"Requires must hold at least {self._AT_LEAST} names, not {list(self._names)}"
            )
        self._functor = functor
        self._check_arity(functor)
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

    def _values(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[name] for name in self._names]


class MapFunctorTask(_FoldingTask):
    """Applies a functor of one argument to each of the required values; a list, in that order.

    :raises ValueError: the functor cannot be called with one argument.
    :raises TypeError: `requires` is not an iterable of names.
    """

    _ARITY = 1
    _AT_LEAST = 0

    def execute(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [self._functor(value) for value in self._values(kwargs)]


class ReduceFunctorTask(_FoldingTask):
    """Folds the required values (two at least) with a functor of two arguments, in that order.

    :raises ValueError: the functor cannot be called with two arguments, or fewer than two names.
    :raises TypeError: `requires` is not an iterable of names.
    """

    _ARITY = 2
    _AT_LEAST = 2

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return functools.reduce(self._functor, self._values(kwargs))


def _takes_self(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), None) == "self"


class _RevertSlot:
    """`revert` of a function task: on the class a decorator, on an instance the body."""

    def __init__(self, owner: type[FunctionTask] | None, body: Callable[..., Any] | None) -> None:
        self.owner = owner
        self.body = body
        self.is_method = body is not None and _takes_self(body)

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            # A subclass shares the slot of its base, but must not change its base's revert.
            return self if owner is self.owner else _RevertSlot(owner, self.body)
        if self.body is None:
            return Task.revert.__get__(instance)
        return self.body.__get__(instance) if self.is_method else self.body

    def __call__(self, body: Callable[..., Any]) -> Any:
        """Make `body` the revert of the task class; `body` itself remains what it was."""
        if self.owner is None or not callable(body):
            raise TypeError(f"revert takes a function, not {body!r}")
        self.owner.revert = _RevertSlot(self.owner, body)  # type: ignore[method-assign, assignment]
        # `def same_name(...)` again must not hide the task, as with property setters.
        return self.owner if getattr(body, "__name__", None) == self.owner.__name__ else body


class FunctionTask(Task):
    """The base of what `@task` makes: construct it as any task, call the function as `.fn`.

    Arguments of the constructor replace those given to `@task`; `inject` adds to them.
    """

    #: The function as it was written.
    fn: ClassVar[Callable[..., Any]]
    _options: ClassVar[Mapping[str, Any]] = {}
    _name: ClassVar[str | None] = None

    def __init__(self, name: str | None = None, **options: Any) -> None:
        defaults = self._options
        if options or defaults:
            given = {key: value for key, value in options.items() if value is not None}
            if "inject" in given and "inject" in defaults:
                given["inject"] = {**defaults["inject"], **given["inject"]}
            super().__init__(name, **{**defaults, **given})
        else:
            super().__init__(name)

    def _default_name(self) -> str:
        return self._name or super()._default_name()


def _class_of(
    body: Callable[..., Any], revert: Callable[..., Any] | None, attributes: Mapping[str, Any]
) -> type[FunctionTask]:
    if not inspect.isroutine(body):
        raise TypeError(f"@task goes above a function, not above {body!r}")
    members = {
        "__module__": body.__module__,
        "__qualname__": body.__qualname__,
        "__doc__": body.__doc__,
        "execute": body if _takes_self(body) else staticmethod(body),
        "fn": staticmethod(body),
        **attributes,
    }
    made: Any = type(body.__name__, (FunctionTask,), members)
    made.revert = _RevertSlot(made, revert)
    return cast(type[FunctionTask], made)


@overload
def task(function: Callable[..., Any], /) -> type[FunctionTask]: ...


@overload
def task(
    *,
    provides: atom.Provides | None = ...,
    name: str | None = ...,
    version: Any = ...,
    requires: str | Iterable[str] | None = ...,
    rebind: _binding.Rebind | None = ...,
    inject: Mapping[str, Any] | None = ...,
    auto_extract: bool = ...,
    ignore_list: Iterable[str] | None = ...,
    revert_rebind: _binding.Rebind | None = ...,
    revert_requires: str | Iterable[str] | None = ...,
    revert: Callable[..., Any] | None = ...,
    priority: int = ...,
    idempotent: bool | None = ...,
    local: bool = ...,
) -> Callable[[Callable[..., Any]], type[FunctionTask]]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    provides: atom.Provides | None = None,
    name: str | None = None,
    version: Any = None,
    revert: Callable[..., Any] | None = None,
    priority: int = 0,
    idempotent: bool | None = None,
    local: bool = False,
    **options: Any,
) -> Any:
    """Turn a function into a task class of the same name, in the same place.

    ::

        @task(provides='total')
        def add(a, b):
            return a + b

        @add.revert
        def forget(result, flow_failures): ...

        flow.add(add(), add('add again', rebind={'a': 'total'}))
        add.fn(1, 2)        # the plain function

    Workers find it by that name (`--tasks module:add`).  A function whose first parameter is called
    `self` is given the task, for `self.update_progress`.  The options are those of `Task`, and are
    defaults for every instance; a wrong one is refused when the first instance is made.

    :raises TypeError: not a function, or an unknown option.
    """
    unknown = set(options) - _OPTIONS
    if unknown:
        word = min(unknown)
        raise TypeError(f"task() takes no option {word!r}{_names.hint(word, _OPTIONS)}")

    attributes = {
        "default_provides": provides,
        "priority": priority,
        "idempotent": idempotent,
        "local": local,
        "_name": name,
        "_options": {key: value for key, value in options.items() if value is not None},
    }
    if version is not None:
        attributes["version"] = version

    def make(body: Callable[..., Any]) -> type[FunctionTask]:
        return _class_of(body, revert, attributes)

    return make if function is None else make(function)
