"""Refuse values on this host that could not be sent to a worker, with the same messages.

A flow that passes this check runs on workers too. The codec of messages does the checks. Nothing is
copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._calls import invocation as calls
from wbengine.types import codec
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._concurrency import event_loop

_ARGUMENTS: Final = "arguments["
_UNSENT: Final = (_ARGUMENTS, "call")


def refused(invocation: calls.Invocation) -> calls.Outcome | None:
    """Return the outcome of an invocation that could not be sent to a worker; None if it could."""
    executes = invocation.action == calls.EXECUTE
    if not executes and _nothing_to_undo(invocation):
        return calls.Outcome(None)
    try:
        for name, value in invocation.arguments.items():
            codec.pack(value, f"{_ARGUMENTS}{name!r}]")
        if not executes and not isinstance(invocation.result, ft.Failure):
            codec.pack(invocation.result, "result")
    except Exception as error:  # arguments may raise any exception; only their task fails
        return calls.Outcome(ft.Failure.from_exception(error))
    return None


def invoke(invocation: calls.Invocation, loop: event_loop.EventLoop | None = None) -> calls.Outcome:
    """Run `invocation.invoke`; a result that could not be sent becomes a failure."""
    return _checked(calls.invoke(invocation, loop))


async def ainvoke(invocation: calls.Invocation) -> calls.Outcome:
    return _checked(await calls.ainvoke(invocation))


def _checked(outcome: calls.Outcome) -> calls.Outcome:
    if not outcome.failed:
        try:
            codec.pack(outcome.value, "result")
        except Exception as error:  # a result may raise any exception, but an outcome is required
            outcome.value = ft.Failure.from_exception(error)
    return outcome


def _nothing_to_undo(invocation: calls.Invocation) -> bool:
    """Return whether a revert need not be sent: it has no effect, or the execution never began."""
    return calls.reverts_nothing(type(invocation.task)) or was_not_sent(invocation.result)


def was_not_sent(result: Any) -> bool:
    """Return whether this is the failure of a task that could not be sent."""
    error = result.exception if isinstance(result, ft.Failure) else None
    return isinstance(error, exceptions.NotEncodable) and error.path.startswith(_UNSENT)
