"""Workflows: tasks whose function runs other tasks as its steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Protocol,
    cast,
    overload,
)

from wbengine import atom
from wbengine._introspection import binding, object_names
from wbengine._tasks import limit_attributes, retry_options
from wbengine._tasks.base import Task
from wbengine.backoff import Backoff, Errors

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    _P = ParamSpec("_P", default=...)
    _R_co = TypeVar("_R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    _P = ParamSpec("_P")
    _R_co = TypeVar("_R_co", covariant=True)
_R = TypeVar("_R")

_ATTRIBUTES: Final = (
    *("provides", "name", "version", "priority", "retries", "backoff", "retry_on", "retry_for"),
    *("fair_key", "validate"),
)


class Workflow(Task, Generic[_P, _R_co]):
    """The base class of tasks created by `@workflow`. `fn` is the original function.

    The type parameters are the parameters of the function without its steps, and its result.
    """

    __module__ = "wbengine.task"

    runs_steps = True
    local = True
    cancel_on_revert = True

    #: As `Flow.fair_key`.
    fair_key: Callable[..., str | None] | None = None
    #: As `Flow.validate`.
    validate: bool = False
    fn: ClassVar[Callable[..., Any]]
    is_async: ClassVar[bool]
    _name: ClassVar[str | None] = None

    def _default_name(self) -> str:
        return self._name or super()._default_name()

    @classmethod
    def inputs(cls, *args: _P.args, **kwargs: _P.kwargs) -> dict[str, Any]:
        """Return inputs by name, for `engines.run`, `engines.submit` and schedules.

        ::

            handle = engines.submit(checkout, inputs=checkout.inputs(order=order), backend=backend)

        Type checkers check the arguments. They bind as in a call of the function.

        :raises TypeError: if an argument is missing or unknown.
        """
        signature = binding.signature_of(cls().execute)
        signature.inspected.bind(*args, **kwargs)
        return signature.bind(args, kwargs)


class _Decorator(Protocol):
    """The decorator that `workflow` with options returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]], /
    ) -> type[Workflow[_P, _R]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, _P], _R], /
    ) -> type[Workflow[_P, _R]]: ...


@overload
def workflow(
    function: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]], /
) -> type[Workflow[_P, _R]]: ...


@overload
def workflow(function: Callable[Concatenate[Any, _P], _R], /) -> type[Workflow[_P, _R]]: ...


@overload
def workflow(
    *,
    provides: atom.Provides | None = ...,
    name: str | None = ...,
    version: Any = ...,
    priority: int = ...,
    retries: int | None = ...,
    backoff: Backoff | float | None = ...,
    retry_on: Errors | None = ...,
    retry_for: float | str | None = ...,
    fair_key: Callable[..., str | None] | None = ...,
    validate: bool = ...,
) -> _Decorator: ...


def workflow(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn a function into a durable workflow: a task that runs other tasks as its steps.

    ::

        @task.workflow
        def checkout(steps, order):
            payment = steps.run(charge, order=order)
            while not steps.run(is_settled, payment=payment):
                steps.sleep(60)
            return steps.run(ship, order=order, payment=payment)

        engines.run(checkout, inputs={"order": order}, backend="sqlite:///flows.db")

    The first parameter receives a `steps.Steps`, or a `steps.AsyncSteps` if the function is `async
    def`. The other parameters are arguments of the task. Each step has a record, and runs where the
    tasks of the engine run. If the process dies, a later run calls the function again, and complete
    steps return their recorded results. So the function must only call steps and compute: no input
    or output, no clock, no random numbers.

    If an exception leaves the function, the complete steps are reverted, latest first. Another
    process may do this, so define tasks with a `revert` at the top level of a module.

    Options have the same meaning as those of `task.task`.

    :param provides: default: 'result'.
    :param retries: maximum number of further executions of the whole function. Before each one, its
        steps are reverted.
    :param fair_key: function of arguments of a submitted workflow: see `Flow.fair_key`.
    :param validate: check inputs by all annotations. Otherwise, only parameters that are annotated
        with classes (dataclasses, enumerations, TypedDict, models, ...) are checked.
    :raises TypeError: if `function` is not a function with a parameter for the steps, or an option
        is unknown.
    :raises ValueError: if `backoff`, `retry_on` or `retry_for` is given without `retries`.
    """
    unknown = set(options).difference(_ATTRIBUTES)
    if unknown:
        word = min(unknown)
        hint = object_names.hint(word, _ATTRIBUTES) or f"; its options are {', '.join(_ATTRIBUTES)}"
        if word in limit_attributes.ATTRIBUTES:
            hint = f": limit its steps, or put it into a flow with this limit: flow.{word} = ..."
        raise TypeError(f"workflow() has no option {word!r}{hint}")
    defaults = {"retries": 0}
    named = (options.get(word, defaults.get(word)) for word in retry_options.NAMES)
    retry_options.check("workflow()", *named)

    def make(body: Callable[..., Any]) -> type[Workflow]:
        return _class_of(body, options)

    return make if function is None else make(function)


def _class_of(body: Callable[..., Any], options: Mapping[str, Any]) -> type[Workflow]:
    if not inspect.isfunction(body):
        raise TypeError(f"@workflow must decorate a function, got {body!r:.80}")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise TypeError(f"Workflow {body.__name__!r} must not contain 'yield': return its result")
    first = next(iter(inspect.signature(body).parameters.values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise TypeError(
            f"Workflow {body.__name__!r} must have a positional parameter for its steps:"
            f" def {body.__name__}(steps, ...)"
        )
    attributes = {
        word: value for word, value in options.items() if value is not None or word == "retries"
    }
    attributes["default_provides"] = attributes.pop("provides", "result")
    attributes["_name"] = attributes.pop("name", None)
    members = {
        "__module__": body.__module__,
        "__qualname__": body.__qualname__,
        "__doc__": body.__doc__,
        # Never called. Engines read the arguments of the task from this signature; as for a method,
        # the first parameter is not one of them.
        "execute": body,
        "fn": staticmethod(body),
        # Plain decorators (`functools.wraps`) return the coroutine of the function.
        "is_async": binding.is_async(inspect.unwrap(body, stop=binding.is_async)),
        **attributes,
    }
    return cast(type[Workflow], type(body.__name__, (Workflow,), members))
