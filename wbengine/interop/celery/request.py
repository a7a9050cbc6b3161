"""What a task may say about the Celery message that it runs for: which it is, and "later again".

Child processes of a pool import this, and nothing of Celery.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine import invocation, running
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.interop.celery import TaskMessage

__all__ = ["Ignore", "Reject", "Retry", "current", "execute"]

#: Where a task carries its message while it runs.
_PLACE: Final = "_celery_message"


class Retry(Exception):
    """Raised by a task that wants to be run again later, with the same arguments or others.

    Its message is sent again, under the same id, with one more in `retries`; until then its state
    is RETRY.  That is at `eta` (an aware datetime, or unix seconds), or `countdown` seconds from
    now; without both, after the task's attribute `default_retry_delay`, or 180 seconds.

    It is run again `max_retries` times at most (`math.inf`: for ever): without that, as often as
    the task's attribute `max_retries` says (None: for ever), or 3 times.  After that it fails with
    `exc`, or with Celery's `MaxRetriesExceededError` if there is none.  `exc` is also what monitors
    and `AsyncResult.result` show until then; without it, the exception that is being handled.
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
        super().__init__(message or "the task asks to be run again")
        if countdown is not None and eta is not None:
            raise ValueError("Retry takes a countdown or an eta, not both")
        if isinstance(eta, dt.datetime):
            if eta.tzinfo is None:
                raise ValueError(f"eta must have a time zone, unlike {eta!r}")
            eta = eta.timestamp()
        for name, value in (("countdown", countdown), ("eta", eta), ("max_retries", max_retries)):
            if value is not None and (not _is_number(value) or value < 0):
                raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
        if countdown == math.inf or eta == math.inf:
            raise ValueError("a retry cannot be put off for ever")
        self.countdown = countdown
        self.eta = eta
        self.exc = exc
        self.max_retries = max_retries
        self.new_args = args
        self.new_kwargs = kwargs


class Ignore(Exception):
    """Raised by a task of which nothing is to be stored or told, as if it had never ended."""


class Reject(Exception):
    """Raised by a task that refuses its message.

    It fails, and the broker drops the message, or keeps it where it was told to (a dead letter
    exchange).  `requeue`: it goes back into its queue instead, for others to take.
    """

    def __init__(self, reason: str = "", requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue

    def __str__(self) -> str:
        return str(self.reason)


def current() -> TaskMessage | None:
    """The message of the task that runs here: its id, retries, root and parent, and so on; but not
    what follows from it (callbacks, the rest of a chain, a chord).

    For `execute` and what it calls, in threads and child processes alike; a thread that they start
    is to be given it.  None where no Celery message is being run.
    """
    call = running.CURRENT.get()
    return None if call is None else getattr(call.task, _PLACE, None)


def execute(
    endpoint: endpoints.Endpoint,
    message: TaskMessage,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    who: running.Request,
    loop: event_loop.EventLoop | None,
    emit: invocation.EventSink,
) -> invocation.Outcome:
    """Make a task that knows its message, and execute it; every error is an outcome.

    Async bodies run in `loop`, or without one in that of the process.  All arguments pickle, so
    this may run in a child process.
    """
    try:
        task = endpoint.generate(message.shadow or message.task)
    except BaseException as error:
        return invocation.Outcome(ft.Failure.from_exception(error))
    setattr(task, _PLACE, message)
    if args:
        # By position, as they came: arguments of tasks are passed by name otherwise.
        vars(task)["execute"] = functools.partial(task.execute, *args)
    return endpoint.execute(task, kwargs, emit, loop, who)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
