"""What runs here and now: the call that a task belongs to while its body runs."""

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
    """One run of a task, as it is known outside (`Task.request`).

    `id` is the same for whatever is the same run of the same thing, also where it is sent again or
    resumed elsewhere: a key for systems outside that should do what they are asked once.  `epoch`
    tells those runs apart (the later, the higher).  `attempt` counts the executions and reversions
    of the task in its flow, `flow_uuid` names the flow.  `worker` is who runs it: 'local', or the
    identity of a worker.  `deadline`, in unix seconds, is when its hard time limit ends it; None:
    never.  `recovered`: an earlier run of the flow may have begun it already (`Task.detached`).
    `left`: the run of the flow was interrupted, and a later one goes on with this.
    """

    id: str
    attempt: int = 1
    epoch: int = 1
    flow_uuid: str = ""
    worker: str = "local"
    deadline: float | None = None
    recovered: bool = False
    left: bool = False


#: The innermost call around the code that asks; whoever runs a task sets and resets it.
CURRENT: Final[ContextVar[invocation.Invocation | None]] = ContextVar("wbengine", default=None)

#: What is entered around the body and the hooks of each call in this process, by whoever traces
#: them; it must not raise.
around: Callable[[invocation.Invocation], AbstractContextManager[object]] | None = None

#: `(id, epoch)` of a request on a worker; `(uuid, attempt)` of an atom in an engine's process.
Key = tuple[str, int]

#: A function, and what it is called with.
Call = tuple[Callable[..., Any], tuple[Any, ...]]

#: What is called in another process instead of this, so that `around` finds there what it finds
#: here by that key, by whoever traces; it must not raise, and what it returns has to pickle.  Pools
#: add one more argument, the last.
sending: Callable[[Key, Call], Call] | None = None

#: Told of the headers of a message that the body of a task sends, by whoever traces; it may add to
#: them, and must not raise.
tying: Callable[[dict[str, Any]], object] | None = None


def current(task: task_module.Task) -> invocation.Invocation | None:
    """The call of `task` that the code which asks is part of; None: there is none."""
    call = CURRENT.get()
    return call if call is not None and call.task is task else None


def meant(error: BaseException, call: invocation.Invocation) -> BaseException:
    """`error`, or what it means where a coroutine was cancelled because its call was."""
    if type(error).__name__ != "CancelledError" or not call.cancellation.cancelled:
        return error
    found = exceptions.Cancelled(f"Task {call.task.name!r} was cancelled")
    found.__cause__ = error
    return found
