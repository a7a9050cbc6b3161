"""Tasks written as functions: the `@task` decorator."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from wbengine import atom
from wbengine._introspection import binding, object_names
from wbengine._tasks import limit_attributes, retry_options
from wbengine._tasks.base import Task
from wbengine.backoff import Backoff, Errors

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)
_F = TypeVar("_F", bound=Callable[..., Any])
_F_co = TypeVar("_F_co", bound=Callable[..., Any], covariant=True)

#: Class attributes that `@task` sets, by parameter, with their defaults.
_ATTRIBUTES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("provides", "idempotent", "timelimit", "expires", "eta"), None),
    "transaction": None,
    **dict.fromkeys(("backoff", "retry_on", "retry_for", *limit_attributes.ATTRIBUTES), None),
    **dict.fromkeys(("local", "cancel_on_revert", "detached", "irreversible"), False),
    **dict.fromkeys(("priority", "retries"), 0),
}
#: Parameters of `@task` that the constructor of an instance does not accept.
_OWN: Final = (*_ATTRIBUTES, "name", "version", "revert")
#: Parameters of `@task` that are passed to the constructor of each instance.
_OPTIONS: Final = (
    *("requires", "rebind", "inject", "auto_extract", "ignore_list"),
    *("revert_rebind", "revert_requires"),
)


def _takes_self(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), None) == "self"


class _RevertSlot:
    """The attribute `revert` of a function task: a decorator on the class, a function on instances.

    `of_failed`: whether the function is also called for failed executions.
    """

    def __init__(
        self,
        owner: type[FunctionTask[Any]] | None,
        body: Callable[..., Any] | None,
        of_failed: bool = False,
    ) -> None:
        self.owner = owner
        self.body = body
        self.of_failed = of_failed
        self.is_method = body is not None and _takes_self(body)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> _RevertSlot: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Callable[..., Any]: ...

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            # A subclass inherits the revert of its base class, but must not change it there.
            return self if owner is self.owner else _RevertSlot(owner, self.body, self.of_failed)
        if self.body is None:
            return Task.revert.__get__(instance)
        return self.body.__get__(instance) if self.is_method else self.body

    @overload
    def __call__(self, body: _F, /, *, failed: bool = ...) -> _F: ...

    @overload
    def __call__(self, /, *, failed: bool = ...) -> Callable[[_F], _F]: ...

    def __call__(self, body: Callable[..., Any] | None = None, /, *, failed: bool = False) -> Any:
        if body is None:
            return functools.partial(self, failed=failed)
        if self.owner is None or not callable(body):
            raise TypeError(f"revert must be a function, got {body!r}")
        slot = _RevertSlot(self.owner, body, failed)
        self.owner.revert = slot
        # As with property setters, a function of the same name must not replace the task.
        return self.owner if getattr(body, "__name__", None) == self.owner.__name__ else body


class _OriginalFunction(Protocol):
    """The type of `FunctionTask.fn`."""

    def __get__(self, task: object, owner: type[FunctionTask[_F]]) -> _F: ...


class FunctionTask(Task, Generic[_F_co]):
    """The base class of tasks created by `@task`. `fn` is the original function.

    Arguments of the constructor replace those of `@task`; `inject` is merged. The type parameter is
    the type of the function, without `self`.
    """

    __module__ = "wbengine.task"

    fn: ClassVar[_OriginalFunction]
    if TYPE_CHECKING:
        revert: ClassVar[_RevertSlot]

        # Otherwise function tasks would match the protocol of class tasks, with any arguments.
        _step: None  # type: ignore[assignment]

    _options: ClassVar[Mapping[str, Any]] = {}
    _name: ClassVar[str | None] = None

    def __init__(self, name: str | None = None, **options: Any) -> None:
        defaults = self._options
        for word in options:
            if word != "provides" and word not in _OPTIONS:
                raise TypeError(_no_option(type(self).__name__, word))
        if options or defaults:
            given_options = {key: value for key, value in options.items() if value is not None}
            if "inject" in given_options and "inject" in defaults:
                given_options["inject"] = {**defaults["inject"], **given_options["inject"]}
            super().__init__(name, **{**defaults, **given_options})
        else:
            super().__init__(name)

    def _default_name(self) -> str:
        return self._name or super()._default_name()


def _no_option(function: str, word: str) -> str:
    if word in _OWN:
        return (
            f"{function}() has no option {word!r}: set it in the decorator,"
            f" @task.task({word}=...), or for one task, by its attribute {word!r}"
        )
    hint = object_names.hint(word, [*_OPTIONS, *_OWN])
    return f"{function}() has no option {word!r}{hint}"


def _class_of(
    body: Callable[..., Any], revert: Callable[..., Any] | None, attributes: Mapping[str, Any]
) -> type[FunctionTask[Any]]:
    if not inspect.isroutine(body):
        raise TypeError(f"@task must decorate a function, got {body!r}")
    members = {
        "__module__": body.__module__,
        "__qualname__": body.__qualname__,
        "__doc__": body.__doc__,
        "execute": body if _takes_self(body) else staticmethod(body),
        "fn": staticmethod(body),
        **attributes,
    }
    task_class: Any = type(body.__name__, (FunctionTask,), members)
    task_class.revert = _RevertSlot(task_class, revert)
    return cast(type[FunctionTask[Any]], task_class)


class _Method(Protocol[_P, _R_co]):
    """A function whose first parameter is named `self`."""

    def __call__(_, self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...  # noqa: N805


class _FunctionWithConnection(Protocol):
    """The type of `_TransactionTask.fn`."""

    def __get__(
        self, task: object, owner: type[_TransactionTask[_P, _R]]
    ) -> Callable[Concatenate[Any, _P], _R]: ...


if TYPE_CHECKING:

    class _TransactionTask(FunctionTask[Callable[_P, _R]], Generic[_P, _R]):
        """The type of tasks with a transaction. Its parameters are without `connection`."""

        fn: ClassVar[_FunctionWithConnection]  # type: ignore[assignment]


class _TransactionMethod(Protocol[_P, _R_co]):
    """A function whose first parameters are named `self` and `connection`."""

    def __call__(_, self: Any, connection: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...  # noqa: N805


class _TransactionDecorator(Protocol):
    """The decorator that `@task` with a transaction returns."""

    @overload
    def __call__(
        self, function: _TransactionMethod[_P, _R], /
    ) -> type[_TransactionTask[_P, _R]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, _P], _R], /
    ) -> type[_TransactionTask[_P, _R]]: ...


class _Decorator(Protocol):
    """The decorator that `@task` with options returns."""

    @overload
    def __call__(self, function: _Method[_P, _R], /) -> type[FunctionTask[Callable[_P, _R]]]: ...

    @overload
    def __call__(
        self, function: _Method[_P, Coroutine[Any, Any, _R]], /
    ) -> type[FunctionTask[Callable[_P, _R]]]: ...

    @overload
    def __call__(self, function: _F, /) -> type[FunctionTask[_F]]: ...


# The type of the function remains as it is, because mypy cannot separate the parameters and the
# result of a generic or overloaded function. For mypy, functions without annotations match
# `_Method`, too; the second definition makes their tasks accept any arguments.
@overload
def task(function: _Method[_P, _R], /) -> type[FunctionTask[Callable[_P, _R]]]: ...


@overload
def task(
    function: _Method[_P, Coroutine[Any, Any, _R]], /
) -> type[FunctionTask[Callable[_P, _R]]]: ...


@overload
def task(function: _F, /) -> type[FunctionTask[_F]]: ...


@overload
def task(
    *,
    transaction: str,
    provides: atom.Provides | None = ...,
    name: str | None = ...,
    version: Any = ...,
    requires: str | Iterable[str] | None = ...,
    rebind: binding.Rebind | None = ...,
    inject: Mapping[str, Any] | None = ...,
    auto_extract: bool = ...,
    ignore_list: Iterable[str] | None = ...,
    revert_rebind: binding.Rebind | None = ...,
    revert_requires: str | Iterable[str] | None = ...,
    revert: Callable[..., Any] | None = ...,
    priority: int = ...,
    idempotent: bool | None = ...,
    local: bool = ...,
    timelimit: tuple[float | None, float | None] | None = ...,
    expires: float | dt.datetime | None = ...,
    eta: float | dt.datetime | None = ...,
    retries: int | None = ...,
    backoff: Backoff | float | None = ...,
    retry_on: Errors | None = ...,
    retry_for: float | str | None = ...,
    cancel_on_revert: bool = ...,
    irreversible: bool = ...,
    rate_limit: str | None = ...,
    concurrency: int | None = ...,
    concurrency_key: Callable[..., Any] | None = ...,
    limit: str | None = ...,
) -> _TransactionDecorator: ...


@overload
def task(
    *,
    provides: atom.Provides | None = ...,
    name: str | None = ...,
    version: Any = ...,
    requires: str | Iterable[str] | None = ...,
    rebind: binding.Rebind | None = ...,
    inject: Mapping[str, Any] | None = ...,
    auto_extract: bool = ...,
    ignore_list: Iterable[str] | None = ...,
    revert_rebind: binding.Rebind | None = ...,
    revert_requires: str | Iterable[str] | None = ...,
    revert: Callable[..., Any] | None = ...,
    priority: int = ...,
    idempotent: bool | None = ...,
    local: bool = ...,
    timelimit: tuple[float | None, float | None] | None = ...,
    expires: float | dt.datetime | None = ...,
    eta: float | dt.datetime | None = ...,
    retries: int | None = ...,
    backoff: Backoff | float | None = ...,
    retry_on: Errors | None = ...,
    retry_for: float | str | None = ...,
    cancel_on_revert: bool = ...,
    irreversible: bool = ...,
    detached: bool = ...,
    rate_limit: str | None = ...,
    concurrency: int | None = ...,
    concurrency_key: Callable[..., Any] | None = ...,
    limit: str | None = ...,
    cost: Callable[..., Any] | float | None = ...,
) -> _Decorator: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: Any = None,
    revert: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Turn a function into a task class with the same name, in the same module.

    ::

        @task(provides='total')
        def add(a, b):
            return a + b

        @add.revert
        def forget(result, flow_failures): ...

        flow.add(add(), add('add again', rebind={'a': 'total'}))
        add.fn(1, 2)        # the original function

    The `revert` function undoes a successful execution, or one that may have succeeded: `result` is
    then a `Failure` (`WorkerLost` or `Interrupted`). With `@add.revert(failed=True)` it is also
    called after other failures.

    With `transaction`, the function receives an open connection as its first argument::

        @task(transaction='shop')
        def charge(connection, order): ...

        charge.fn(connection, 7)        # in a test, with a connection of the test

    Workers find the task by its name (`--tasks module:add`). A function whose first parameter is
    `self` receives the task, for example for `self.update_progress`. The options are those of
    `Task`, as defaults of all instances. Some invalid values are only rejected when the first
    instance is created.

    :raises TypeError: if `function` is not a function, or an option is unknown.
    :raises ValueError: if `backoff`, `retry_on` or `retry_for` is given without `retries`, or a
        limit is invalid.
    """
    attributes = {word: options.pop(word, value) for word, value in _ATTRIBUTES.items()}
    limit_attributes.check("a task", *(attributes[word] for word in limit_attributes.ATTRIBUTES))
    retry_options.check("task()", *(attributes[word] for word in retry_options.NAMES))
    unknown = set(options).difference(_OPTIONS)
    if unknown:
        word = min(unknown)
        raise TypeError(
            f"task() has no option {word!r}{object_names.hint(word, [*_OPTIONS, *_OWN])}"
        )
    attributes["default_provides"] = attributes.pop("provides")
    attributes["_name"] = name
    attributes["_options"] = {key: value for key, value in options.items() if value is not None}
    if version is not None:
        attributes["version"] = version

    def make(body: Callable[..., Any]) -> type[FunctionTask[Any]]:
        return _class_of(body, revert, attributes)

    return make if function is None else make(function)
