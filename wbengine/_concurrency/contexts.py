"""Copies of the current context, in which calls change context variables only for themselves."""

from __future__ import annotations

import contextvars
import decimal
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from wbengine._concurrency import forks
from wbengine.types import failure as ft

__all__ = ["DECIMAL", "copy", "isolate", "run"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


#: Hook: returns further attributes of the log records of this context. It must not raise
#: exceptions.
log_fields: Callable[[], Mapping[str, object]] = dict


def _decimal_variable() -> contextvars.ContextVar[Any]:
    context = contextvars.Context()
    context.run(decimal.getcontext)
    # A build of `decimal` without context variables keeps its context in the thread.
    return next(iter(context), contextvars.ContextVar("unused"))


#: The variable with the context of `decimal`. It is unset until the context is used.
DECIMAL: Final = _decimal_variable()


def isolate() -> None:
    """Give the current context its own copy of the context of `decimal`.

    That one is mutable, and a copied context refers to the same object.
    """
    context = DECIMAL.get(None)
    if context is not None:
        DECIMAL.set(context.copy())


def copy() -> contextvars.Context:
    """Return an isolated copy of the current context."""
    context = contextvars.copy_context()
    context.run(isolate)
    return context


def run(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function of the user in a copy of the current context.

    A process that it forks ends when the call ends.
    """
    pid = forks.current_pid
    try:
        value = copy().run(function, *args, **kwargs)
    except BaseException as error:
        forks.end_fork(pid, ft.Failure.from_exception(error))
        raise
    forks.end_fork(pid)
    return value
