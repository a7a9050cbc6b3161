"""Options for one use of a task: `charge.options(retries=5)`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypedDict

from wbengine._concurrency import time_limits
from wbengine._introspection import object_names
from wbengine._tasks import limit_attributes, retry_options
from wbengine.backoff import Backoff, Errors

__all__ = ["CallOptions", "TaskWithOptions", "options_of", "with_options"]


class CallOptions(TypedDict, total=False):
    """The arguments of `Task.options`. They have the meaning of the attributes of a task."""

    retries: int | None
    backoff: Backoff | float | None
    retry_on: Errors | None
    retry_for: float | str | None
    timelimit: tuple[float | None, float | None] | float | None
    expires: float | dt.datetime | None
    eta: float | dt.datetime | None
    priority: int
    idempotent: bool | None
    limit: str | None
    rate_limit: str | None
    concurrency: int | None
    concurrency_key: Callable[..., Any] | None
    cost: Callable[..., Any] | float | None


_NAMES: Final = tuple(CallOptions.__annotations__)
_NAMES_OF_WORKFLOWS: Final = (*retry_options.NAMES, "priority")


class TaskWithOptions:
    """A task class with other values of some attributes. A call creates a task with these values.

    For type checkers, this is the class of the task.
    """

    def __init__(self, task_class: type[Any], values: Mapping[str, Any]) -> None:
        self.task_class = task_class
        self.values = values

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        task = self.task_class(*args, **kwargs)
        for name, value in self.values.items():
            setattr(task, name, value)
        return task

    def options(self, **values: Any) -> TaskWithOptions:
        return with_options(self.task_class, {**self.values, **values})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task_class, name)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{object_names.dotted(self.task_class)}.options({values})"


def options_of(task: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return a task class without its options, and the options."""
    return (task.task_class, task.values) if isinstance(task, TaskWithOptions) else (task, {})


def with_options(task_class: type[Any], values: Mapping[str, Any]) -> TaskWithOptions:
    """Return a task class with these options.

    :raises TypeError, ValueError: if an option is unknown or invalid.
    """
    name = task_class.__name__
    allowed = _NAMES_OF_WORKFLOWS if task_class.runs_steps else _NAMES
    for word in values:
        if word not in allowed:
            raise TypeError(_unknown(name, word, allowed))
    given = TaskWithOptions(task_class, values)
    _check(f"{name}.options()", given)
    return given


def _unknown(name: str, word: str, allowed: Collection[str]) -> str:
    hint = object_names.hint(word, allowed) or f"; its options are {', '.join(allowed)}"
    return f"{name}.options() has no option {word!r}{hint}"


def _check(what: str, given: TaskWithOptions) -> None:
    values = given.values

    def option(name: str) -> Any:
        return values.get(name, getattr(given.task_class, name))

    if not values.keys().isdisjoint(retry_options.NAMES):
        retries = option("retries")
        if retries is not None and (type(retries) is not int or retries < 0):
            raise ValueError(
                f"retries of {what} must be a whole number of at least 0, or None, got"
                f" {retries!r:.80}"
            )
        Backoff.of(option("backoff"))
        # Without retries, the other options of the decorator have no effect.
        has_retries = retries != 0
        of_retries = (
            option(name) if has_retries or name == "retries" else values.get(name)
            for name in retry_options.NAMES
        )
        retry_options.check(what, *of_retries)
    time_limits.read(values.get("timelimit"), f"timelimit of {what}")
    if not isinstance(values.get("priority", 0), int | float):
        raise TypeError(f"priority of {what} must be a number, got {values['priority']!r:.80}")
    if not values.keys().isdisjoint(limit_attributes.ATTRIBUTES):
        for word in ("rate_limit", "concurrency"):
            # All tasks that share a limit must define the same numbers.
            if values.get(word) is not None and values.get("limit") is None:
                raise ValueError(f"{what} has {word}, so it requires limit: the name of a limit")
        limit_attributes.check(what, *map(option, limit_attributes.ATTRIBUTES))
