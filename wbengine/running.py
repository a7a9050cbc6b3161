"""The context of running tasks, and hooks for tracers and frameworks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from wbengine import exceptions

if TYPE_CHECKING:
    from wbengine import task as task_module
    from wbengine._calls import invocation
    from wbengine.types import _tags

_T = TypeVar("_T")
_P = ParamSpec("_P")

#: The worker name of tasks that ran in the process of the engine.
LOCAL: Final = "local"


class Request(NamedTuple):
    """Public data of a running call (`Task.request`).

    :ivar id: identifies the execution, even if it is resent or resumed. Use it as an idempotency
        key for external systems.
    :ivar attempt: number of the execution or revert of the task in its flow.
    :ivar epoch: number of the copy of the request. Later copies have higher numbers.
    :ivar worker: 'local', or the identity of the worker.
    :ivar deadline: end of the hard time limit in Unix seconds; None: no limit.
    :ivar recovered: whether an earlier run of the flow may have started it (`Task.detached`).
    :ivar left: whether the run of the flow was interrupted. A later run continues this call.
    """

    id: str
    attempt: int = 1
    epoch: int = 1
    flow_uuid: str = ""
    worker: str = LOCAL
    deadline: float | None = None
    recovered: bool = False
    left: bool = False

    def tag(self, /, **tags: _tags.Value) -> None:
        """Set tags of the flow, for example `self.request.tag(order=17, paid=True)`.

        Lists of flows find them while the task runs. They stay if the task fails. The latest value
        of a key counts. A tag of the submission, and more than 32 tags, have no effect, and the
        engine logs a warning.

        :raises TypeError, ValueError: if a key or a value is invalid.
        :raises RuntimeError: if no task runs in this context. Threads that a task starts need a
            copy of its context, as `asyncio.to_thread` makes it.
        """
        _running_call("Tags can be set").tag(tags)

    def spend(self, units: float) -> None:
        """Report the units of `rate_limit` that this execution has used, in place of its `cost`.

        The limit takes additional units from the next permits, and gives unused ones back, when the
        task ends. The latest report counts. Without a rate, it has no effect.

        :raises TypeError, ValueError: if they are not a finite number of at least 0.
        :raises RuntimeError: if no task runs in this context, as for `tag`.
        """
        _running_call("Units can be reported").spend(units)


#: The innermost running call. The code that runs a task sets and resets it.
CURRENT: Final[ContextVar[invocation.Invocation | None]] = ContextVar("wbengine", default=None)


def _running_call(what: str) -> invocation.Invocation:
    call = CURRENT.get()
    if call is None:
        raise RuntimeError(
            f"{what} only in the context of a running task: start threads with a copy of it"
            " (contextvars.copy_context)"
        )
    return call


#: Hook of tracers: a context manager around each call in this process. It must raise no exceptions.
around: Callable[[invocation.Invocation], AbstractContextManager[object]] | None = None

#: `(id, epoch)` of a request on a worker, or `(uuid, attempt)` of an atom in an engine's process.
Key = tuple[str, int]

#: A function with its arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]

#: Hook of tracers: replaces a call to another process, so that `around` finds the same context
#: there. It must not raise exceptions. Its result must be picklable; pools append one argument.
sending: Callable[[Key, Call], Call] | None = None

#: Hook of tracers: may add headers to messages that a task sends. It must not raise exceptions.
header_hook: Callable[[dict[str, Any]], object] | None = None

#: Hook of frameworks: a context manager around the code of the user, in the thread that runs it:
#: methods of tasks and retry controllers, and factories of stored flows. It must raise no
#: exceptions.
scope: Callable[[], AbstractContextManager[object]] | None = None

#: The same around each async method of a task, in the event loop.
async_scope: Callable[[], AbstractAsyncContextManager[object]] | None = None


def in_scope(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function of the user in the `scope` of frameworks."""
    if scope is None:
        return function(*args, **kwargs)
    with scope():
        return function(*args, **kwargs)


def current(task: task_module.Task) -> invocation.Invocation | None:
    """Return the running call of `task` in this context, or None."""
    call = CURRENT.get()
    return call if call is not None and call.task is task else None


def translate_cancellation(error: BaseException, call: invocation.Invocation) -> BaseException:
    """Return `error`, or `Cancelled` if the call was cancelled and therefore its coroutine."""
    if type(error).__name__ != "CancelledError" or not call.cancellation.cancelled:
        return error
    cancelled = exceptions.Cancelled(f"Task {call.task.name!r} was cancelled")
    cancelled.__cause__ = error
    return cancelled
