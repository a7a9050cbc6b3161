"""Refuse on this host what could not travel to a worker: the same values, in the same words.

With it, a flow that runs here runs on workers as well, as far as values are concerned: arguments
and results are looked at by the codec that would write them into messages.  Nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wbengine import _codec, exceptions
from wbengine import invocation as calls
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop

_ARGUMENTS: Final = "arguments["
#: Where the path of an error about a call begins that never left.
_UNSENT: Final = (_ARGUMENTS, "call")


def refused(invocation: calls.Invocation) -> calls.Outcome | None:
    """The outcome of an invocation that would never reach a worker; None if it would."""
    executes = invocation.action == calls.EXECUTE
    if not executes and _nothing_to_undo(invocation):
        return calls.Outcome(None)
    try:
        for name, value in invocation.arguments.items():
            _codec.pack(value, f"{_ARGUMENTS}{name!r}]")
        if not executes and not isinstance(invocation.result, ft.Failure):
            _codec.pack(invocation.result, "result")
    except Exception as error:  # whatever arguments do, nobody but their task is hurt
        return calls.Outcome(ft.Failure.from_exception(error))
    return None


def invoke(invocation: calls.Invocation, loop: event_loop.EventLoop | None = None) -> calls.Outcome:
    """As `invocation.invoke`; a result that could not travel back is a failure."""
    return _checked(calls.invoke(invocation, loop))


async def ainvoke(invocation: calls.Invocation) -> calls.Outcome:
    """As `invocation.ainvoke`, likewise."""
    return _checked(await calls.ainvoke(invocation))


def _checked(outcome: calls.Outcome) -> calls.Outcome:
    if not outcome.failed:
        try:
            _codec.pack(outcome.value, "result")
        except Exception as error:  # whatever a result does, there is an outcome
            outcome.value = ft.Failure.from_exception(error)
    return outcome


def _nothing_to_undo(invocation: calls.Invocation) -> bool:
    """Whether a reversion need not travel: it would do nothing, or undo what never began."""
    return calls.reverts_nothing(type(invocation.task)) or never_left(invocation.result)


def never_left(result: Any) -> bool:
    """Whether this is what an execution failed with whose task or arguments could not be sent."""
    error = result.exception if isinstance(result, ft.Failure) else None
    return isinstance(error, exceptions.NotEncodable) and error.path.startswith(_UNSENT)
