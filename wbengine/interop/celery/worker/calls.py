"""One call of a task with what a Celery message says, in whatever pool."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wbengine import exceptions, invocation, running
from wbengine import task as task_module
from wbengine._tasks import function
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import errors
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import loops
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.interop.celery.protocol.message import TaskMessage
    from wbengine.interop.celery.worker.informing import Errback

__all__ = ["inform", "make", "run"]

#: Constructors that do no more than note what they are given.
_PLAIN = (task_module.Task.__init__, function.FunctionTask.__init__)


def run(
    endpoint: endpoints.Endpoint,
    message: TaskMessage,
    who: running.Request,
    loop: loops.Loop | None,
    expires: float | None,
    emit: invocation.EventSink,
) -> invocation.Outcome:
    """Make a task, and execute it with the arguments of a message; every error is an outcome.

    What the task means by an exception is the outcome's value: `retrying.Again` or
    `retrying.Refusal` instead of a failure.  After `expires`, in unix seconds, it is not run.

    Async bodies run in `loop`, or without one in that of the process.  All arguments pickle, so
    this may run in a child process.
    """
    if expires is not None and time.time() > expires:
        late = exceptions.Expired(f"task {message.task!r} had its turn after its time was up")
        return invocation.Outcome(ft.Failure.from_exception(late))
    try:
        task = _task_for(endpoint, message.shadow or message.task, message, message.args)
    except BaseException as error:
        return invocation.Outcome(ft.Failure.from_exception(error))
    outcome = endpoint.execute(task, message.kwargs, emit, loop, who)
    if not outcome.failed:
        return outcome
    meant = retrying.verdict(outcome.value, message, task, time.time())
    return outcome if meant is outcome.value else replace(outcome, value=meant)


def inform(
    errbacks: Sequence[Errback],
    message: TaskMessage,
    failure: ft.Failure,
    who: running.Request,
    loop: loops.Loop | None,
    emit: invocation.EventSink,
) -> list[ft.Failure]:
    """Call the errbacks of a message whose task failed; what some of them failed with."""
    error = failure.exception or exceptions.WrappedFailure([failure])
    found = []
    for one in errbacks:
        args = (
            one.args if one.immutable else (message, error, errors.traceback_of(failure), *one.args)
        )
        try:
            task = _task_for(one.endpoint, one.name, message, args)
        except BaseException as wrong:
            found.append(ft.Failure.from_exception(wrong))
            continue
        outcome = one.endpoint.execute(task, one.kwargs, emit, loop, who)
        if outcome.failed:
            found.append(outcome.value)
    return found


def _task_for(
    endpoint: endpoints.Endpoint, name: str, message: TaskMessage, args: Sequence[Any]
) -> Any:
    """A task that knows its message, and is given these arguments by position."""
    task = make(endpoint, name)
    retrying.carry(task, message)
    if args:
        # By position, as they came: arguments of tasks are passed by name otherwise.
        vars(task)["execute"] = functools.partial(task.execute, *args)
    return task


def make(endpoint: endpoints.Endpoint, name: str) -> Any:
    """A task of the endpoint's class, also of one that takes arguments by position only.

    No flow could have that, for it passes all by name.
    """
    cls = endpoint.task_cls
    try:
        return endpoint.generate(name)
    except ValueError:
        if cls.__init__ not in _PLAIN or not _takes_positions(cls):
            raise
    task = cls.__new__(cls)
    task.name = name
    if inspect.iscoroutinefunction(inspect.unwrap(cls.execute)):
        task.async_bodies = frozenset((invocation.EXECUTE,))
    return task


def _takes_positions(cls: type[task_module.Task]) -> bool:
    parameters = list(inspect.signature(cls.execute).parameters.values())
    return any(one.kind is one.POSITIONAL_ONLY for one in parameters)
