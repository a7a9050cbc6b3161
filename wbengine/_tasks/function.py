"""Tasks written as functions: the `@task` decorator."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, cast, overload

from wbengine import _binding, _names, atom
from wbengine._tasks.base import Task
from wbengine.backoff import Backoff, Errors
from wbengine.permits import limits

#: What `@task` sets on the class, by the words that it is given in, and what they are otherwise.
_ATTRIBUTES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("provides", "idempotent", "timelimit", "expires", "eta"), None),
    **dict.fromkeys(("backoff", "retry_on", *limits.ATTRIBUTES), None),
    **dict.fromkeys(("local", "cancel_on_revert", "detached"), False),
    **dict.fromkeys(("priority", "retries"), 0),
}
#: The words that mean nothing to the constructor of an instance.
_OWN: Final = (*_ATTRIBUTES, "name", "version", "revert")
#: What `@task` passes on to the constructor of every instance.
_OPTIONS: Final = (
    *("requires", "rebind", "inject", "auto_extract", "ignore_list"),
    *("revert_rebind", "revert_requires"),
)


def _takes_self(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), None) == "self"


class _RevertSlot:
    """`revert` of a function task: on the class a decorator, on an instance the body.

    `of_failed`: whether the body is also called for an execution that failed.
    """

    def __init__(
        self,
        owner: type[FunctionTask] | None,
        body: Callable[..., Any] | None,
        of_failed: bool = False,
    ) -> None:
        self.owner = owner
        self.body = body
        self.of_failed = of_failed
        self.is_method = body is not None and _takes_self(body)

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            # A subclass shares the slot of its base, but must not change its base's revert.
            return self if owner is self.owner else _RevertSlot(owner, self.body, self.of_failed)
        if self.body is None:
            return Task.revert.__get__(instance)
        return self.body.__get__(instance) if self.is_method else self.body

    def __call__(self, body: Callable[..., Any] | None = None, /, *, failed: bool = False) -> Any:
        """Make `body` the revert of the task class; `body` itself remains what it was."""
        if body is None:
            return functools.partial(self, failed=failed)
        if self.owner is None or not callable(body):
            raise TypeError(f"revert takes a function, not {body!r}")
        slot = _RevertSlot(self.owner, body, failed)
        self.owner.revert = slot  # type: ignore[method-assign, assignment]
        # `def same_name(...)` again must not hide the task, as with property setters.
        return self.owner if getattr(body, "__name__", None) == self.owner.__name__ else body


class FunctionTask(Task):
    """The base of what `@task` makes: construct it as any task, call the function as `.fn`.

    Arguments of the constructor replace those given to `@task`; `inject` adds to them.
    """

    # Users, workers and pickles know it by this name.
    __module__ = "wbengine.task"

    #: The function as it was written.
    fn: ClassVar[Callable[..., Any]]
    _options: ClassVar[Mapping[str, Any]] = {}
    _name: ClassVar[str | None] = None

    def __init__(self, name: str | None = None, **options: Any) -> None:
        defaults = self._options
        for word in options:
            if word != "provides" and word not in _OPTIONS:
                raise TypeError(_no_option(type(self).__name__, word))
        if options or defaults:
            given = {key: value for key, value in options.items() if value is not None}
            if "inject" in given and "inject" in defaults:
                given["inject"] = {**defaults["inject"], **given["inject"]}
            super().__init__(name, **{**defaults, **given})
        else:
            super().__init__(name)

    def _default_name(self) -> str:
        return self._name or super()._default_name()


def _no_option(function: str, word: str) -> str:
    """What is wrong with an option that an instance of a function's task is given."""
    if word in _OWN:
        return (
            f"{function}() takes no option {word!r}: say it above the function,"
            f" @task.task({word}=...), or of one task, by setting its attribute {word!r}"
        )
    hint = _names.hint(word, [*_OPTIONS, *_OWN])
    return f"{function}() takes no option {word!r}{hint}"


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
    timelimit: tuple[float | None, float | None] | None = ...,
    expires: float | dt.datetime | None = ...,
    eta: float | dt.datetime | None = ...,
    retries: int = ...,
    backoff: Backoff | float | None = ...,
    retry_on: Errors | None = ...,
    cancel_on_revert: bool = ...,
    detached: bool = ...,
    rate_limit: str | None = ...,
    concurrency: int | None = ...,
    concurrency_key: Callable[..., Any] | None = ...,
    limit: str | None = ...,
) -> Callable[[Callable[..., Any]], type[FunctionTask]]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: Any = None,
    revert: Callable[..., Any] | None = None,
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

    What is given to `revert` is called to undo an execution that succeeded; with
    `@add.revert(failed=True)` also after one that failed, whose `result` is its `Failure` then.

    Workers find it by that name (`--tasks module:add`).  A function whose first parameter is called
    `self` is given the task, for `self.update_progress`.  The options are those of `Task`, and are
    defaults for every instance; a wrong one is refused when the first instance is made.

    :raises TypeError: not a function, or an unknown option.
    :raises ValueError: `backoff` or `retry_on` without `retries`, or a limit that makes no sense.
    """
    attributes = {word: options.pop(word, value) for word, value in _ATTRIBUTES.items()}
    limits.check("a task", *(attributes[word] for word in limits.ATTRIBUTES))
    if not attributes["retries"]:
        for word in ("backoff", "retry_on"):
            if attributes[word] is not None:
                raise ValueError(
                    f"task() has {word}, but no retries: say how many, as in retries=3"
                )
    unknown = set(options).difference(_OPTIONS)
    if unknown:
        word = min(unknown)
        raise TypeError(f"task() takes no option {word!r}{_names.hint(word, [*_OPTIONS, *_OWN])}")
    attributes["default_provides"] = attributes.pop("provides")
    attributes["_name"] = name
    attributes["_options"] = {key: value for key, value in options.items() if value is not None}
    if version is not None:
        attributes["version"] = version

    def make(body: Callable[..., Any]) -> type[FunctionTask]:
        return _class_of(body, revert, attributes)

    return make if function is None else make(function)
