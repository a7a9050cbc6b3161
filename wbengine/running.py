"""The call that is running: context of task bodies, and hooks for tracers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import exceptions

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine import task as task_module


class Request(NamedTuple):
    """Public data of a running call (`Task.request`).

    :ivar id: identifies the execution, also when it is resent or resumed. Use it as an idempotency
        key for external systems.
    :ivar attempt: number of the execution or revert of the task in its flow.
    :ivar epoch: distinguishes copies of the same execution; later ones are higher.
    :ivar worker: 'local', or the identity of the worker.
    :ivar deadline: end of the hard time limit in Unix seconds; None: no limit.
    :ivar recovered: an earlier run of the flow may have begun it (`Task.detached`).
    :ivar left: the run of the flow was interrupted, and a later run continues this call.
    """

    id: str
    attempt: int = 1
    epoch: int = 1
    flow_uuid: str = ""
    worker: str = "local"
    deadline: float | None = None
    recovered: bool = False
    left: bool = False


#: The innermost running call. The code that runs a task sets and resets it.
CURRENT: Final[ContextVar[invocation.Invocation | None]] = ContextVar("wbengine", default=None)

#: Set by tracers: a context manager around each call in this process. It must not raise exceptions.
around: Callable[[invocation.Invocation], AbstractContextManager[object]] | None = None

#: `(id, epoch)` of a request on a worker; `(uuid, attempt)` of an atom in the process of an engine.
Key = tuple[str, int]

#: A function with its arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]

#: Set by tracers: replaces a call that is sent to another process, so that `around` finds the same
#: context there. It must not raise exceptions; its result must be picklable. Pools append one more
#: argument.
sending: Callable[[Key, Call], Call] | None = None

#: Set by tracers: may add headers to messages that the body of a task sends. It must not raise
#: exceptions.
tying: Callable[[dict[str, Any]], object] | None = None


def current(task: task_module.Task) -> invocation.Invocation | None:
    """Return the running call of `task` in this context, or None."""
    call = CURRENT.get()
    return call if call is not None and call.task is task else None


def meant(error: BaseException, call: invocation.Invocation) -> BaseException:
    """Return `error`, or `Cancelled` if a coroutine was cancelled because its call was."""
    if type(error).__name__ != "CancelledError" or not call.cancellation.cancelled:
        return error
    cancelled = exceptions.Cancelled(f"Task {call.task.name!r} was cancelled")
    cancelled.__cause__ = error
    return cancelled
