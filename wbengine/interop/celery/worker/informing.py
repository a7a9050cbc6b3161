"""Errbacks that are called with a failure itself, not sent with the id of the task that failed.

Celery does so with those that take more than one argument, in the worker that saw the failure, if
it offers them.  All others are tasks as any other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wbengine import task as task_module
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.interop.celery.protocol.message import TaskMessage
    from wbengine.interop.celery.worker.mapping import Tasks

__all__ = ["Errback", "Informing", "split"]


@dataclass(frozen=True, slots=True)
class Errback:
    """One that is called here: with the message that failed, its exception and its traceback, and
    then with what its signature says; if that is immutable, with that alone."""

    endpoint: endpoints.Endpoint
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    immutable: bool


@dataclass(slots=True)
class Informing:
    """A task failed: before that is told, its errbacks are called here."""

    #: Its message as it was, and its outcome.
    message: TaskMessage
    outcome: invocation.Outcome
    #: Its message is refused, too.
    reject: bool = False
    errbacks: tuple[Errback, ...] = ()

    @property
    def failure(self) -> ft.Failure:
        found: ft.Failure = self.outcome.value
        return found


def split(message: TaskMessage, tasks: Tasks) -> tuple[tuple[Errback, ...], list[Any]]:
    """The errbacks of a message that are called here, and the signatures of the others."""
    called: list[Errback] = []
    others: list[Any] = []
    for signature in message.errbacks:
        found = _errback(signature, tasks)
        if found is None:
            others.append(signature)
        else:
            called.append(found)
    return tuple(called), others


def _errback(signature: Mapping[str, Any], tasks: Tasks) -> Errback | None:
    name = signature.get("task")
    if signature.get("subtask_type") or not isinstance(name, str):
        return None
    endpoint = tasks.find(name)
    body = None if endpoint is None else _body(endpoint.task_cls)
    if endpoint is None or body is None:
        return None
    args, kwargs = signature.get("args") or (), signature.get("kwargs") or {}
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        return None
    immutable = bool(signature.get("immutable"))
    given = ((), {}) if immutable else (args, kwargs)
    if not _takes_more(body, *given):
        return None
    return Errback(endpoint, name, tuple(args), dict(kwargs), immutable)


def _body(cls: type[task_module.Task]) -> Any:
    """What is called; None for a function that takes its task: Celery sends those, too."""
    if not issubclass(cls, task_module.FunctionTask):
        body: Any = cls.execute
        return functools.partial(body, None)
    return cls.fn if isinstance(vars(cls).get("execute"), staticmethod) else None


def _takes_more(body: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether more than one argument can be given by position besides these."""
    try:
        found = inspect.signature(functools.partial(body, *args, **kwargs))
    except (TypeError, ValueError):
        return False
    kinds = [one.kind for one in found.parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(k in positional for k in kinds) > 1
