"""The message of the running task (`current`), and the exceptions `Retry`, `Ignore`, `Reject`.

Child processes of a pool import this module, but nothing from Celery.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine import running
from wbengine._calls import invocation
from wbengine._introspection import object_names
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._concurrency import event_loop
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.interop.celery import TaskMessage

__all__ = ["Ignore", "Reject", "Retry", "current", "execute"]

#: Attribute of a running task for its message.
_MESSAGE_ATTRIBUTE: Final = "_celery_message"


class Retry(Exception):
    """Raised by a task to run again later, with the same or new arguments.

    The message is sent again under the same id, with `retries` increased by one. Until it runs
    again, the state is RETRY.

    :param countdown: seconds until the next run. Without this and `eta`, the delay is the task's
        attribute `default_retry_delay`, or 180 seconds.
    :param eta: the time of the next run, as an aware datetime or in Unix seconds.
    :param max_retries: the maximum number of retries (`math.inf`: no maximum). Default: the task's
        attribute `max_retries` (None: no maximum), or 3.
    :param exc: the exception of the task after the last retry; default: Celery's
        `MaxRetriesExceededError`. Until then, monitors and `AsyncResult.result` show it, or else
        the exception that is being handled.
    """

    def __init__(
        self,
        message: str = "",
        *,
        countdown: float | None = None,
        eta: dt.datetime | float | None = None,
        exc: BaseException | None = None,
        max_retries: float | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message or "the task requests a retry")
        if countdown is not None and eta is not None:
            raise ValueError("Retry accepts only one of countdown and eta")
        if isinstance(eta, dt.datetime):
            if eta.tzinfo is None:
                raise ValueError(f"eta must have a time zone, got {eta!r}")
            eta = eta.timestamp()
        for name, value in (("countdown", countdown), ("eta", eta), ("max_retries", max_retries)):
            if value is not None and (not _is_number(value) or value < 0):
                raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
        if countdown == math.inf or eta == math.inf:
            raise ValueError("countdown and eta of a retry must be finite")
        self.countdown = countdown
        self.eta = eta
        self.exc = exc
        self.max_retries = max_retries
        self.new_args = args
        self.new_kwargs = kwargs


class Ignore(Exception):
    """Raised by a task whose result must not be stored or published."""


class Reject(Exception):
    """Raised by a task that rejects its message.

    The task fails, and the broker discards the message or dead-letters it. With `requeue`, the
    broker requeues the message for another worker instead.
    """

    def __init__(self, reason: str = "", requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue

    def __str__(self) -> str:
        return str(self.reason)


def current() -> TaskMessage | None:
    """Return the message of the running task (its id, retries, root, parent), or None.

    The message does not contain follow-up tasks (callbacks, the rest of a chain, a chord). Call
    this in `execute` or in code that it calls, in threads or child processes. Threads that the task
    starts do not have the message.
    """
    call = running.CURRENT.get()
    return None if call is None else getattr(call.task, _MESSAGE_ATTRIBUTE, None)


def execute(
    endpoint: endpoints.Endpoint,
    message: TaskMessage,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    who: running.Request,
    loop: event_loop.EventLoop | None,
    emit: invocation.EventSink,
) -> invocation.Outcome:
    """Create a task for a message and execute it. Every error becomes a result.

    Async tasks run in `loop` (None: the loop of the process). All arguments can be pickled, because
    this may run in a child process.
    """
    try:
        name = message.shadow or message.task  # may exceed `MAX_NAME_LENGTH`
        task = endpoint.generate(name[: object_names.MAX_NAME_LENGTH])
    except BaseException as error:
        return invocation.Outcome(ft.Failure.from_exception(error))
    setattr(task, _MESSAGE_ATTRIBUTE, message)
    if args:
        vars(task)["execute"] = functools.partial(task.execute, *args)
    return endpoint.execute(task, kwargs, emit, loop, who)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
