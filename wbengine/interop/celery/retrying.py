"""What a task may say about the Celery message that it runs for: which it is, and "later again"."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions, running
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.interop.celery.protocol.message import TaskMessage

__all__ = [
    "Again",
    "Ignore",
    "MaxRetriesExceeded",
    "Refusal",
    "Reject",
    "Retry",
    "current",
    "verdict",
]

#: As in Celery: what a task does that says nothing else.
DEFAULT_DELAY: Final = 180.0
DEFAULT_MAX_RETRIES: Final = 3

#: Where a task carries its message while it runs.
_PLACE: Final = "_celery_message"


class Retry(Exception):
    """Raised by a task that wants to be run again later, with the same arguments or others.

    Its message is sent again, under the same id, with one more in `retries`; until then its state
    is RETRY.  That is at `eta` (an aware datetime, or unix seconds), or `countdown` seconds from
    now; without both, after the task's attribute `default_retry_delay`, or 180 seconds.

    It is run again `max_retries` times at most (`math.inf`: for ever): without that, as often as
    the task's attribute `max_retries` says (None: for ever), or 3 times.  After that it fails with
    `exc`, or with `MaxRetriesExceeded` if there is none.  `exc` is also what monitors and
    `AsyncResult.result` show until then; without it, the exception that is being handled.
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


class MaxRetriesExceeded(exceptions.ExecutionFailure):
    """A task asked to be run again, and was as often as it may be.

    Celery's clients know it as `celery.exceptions.MaxRetriesExceededError`.
    """


class Ignore(Exception):
    """Raised by a task of which nothing is to be stored or told, as if it had never ended."""


class Reject(Exception):
    """Raised by a task that refuses its message.

    It fails, and the broker drops the message, or keeps it where it was told to (a dead letter
    exchange): over RabbitMQ that of an `idempotent` task only, as that of another was acknowledged
    when the task began.  `requeue`: it goes back into its queue instead, for others to take.
    """

    def __init__(self, reason: str = "", requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue

    def __str__(self) -> str:
        return str(self.reason)


@dataclass(slots=True)
class Again:
    """A task wants to be run again, at `eta` in unix seconds; `why` is its exception, if any."""

    eta: float
    why: ft.Failure | None = None
    traceback: str = ""
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Refusal:
    """A task wants nothing to be known of it (`ignored`), or refuses its message."""

    failure: ft.Failure
    ignored: bool = False
    requeue: bool = False


def current() -> TaskMessage | None:
    """The message of the task that runs here: its id, retries, root and parent, and so on.

    For `execute` and what it calls, in threads and child processes alike; a thread that they start
    is to be given it.  None where no Celery message is being run.
    """
    call = running.CURRENT.get()
    return None if call is None else getattr(call.task, _PLACE, None)


def carry(task: Any, message: TaskMessage) -> None:
    """Let `current` find the message while `task` runs."""
    setattr(task, _PLACE, message)


def verdict(failure: ft.Failure, message: TaskMessage, task: Any, now: float) -> Any:
    """What is meant by a failure: `Again`, a `Refusal`, or the failure itself (or another)."""
    error = failure.exception
    names = tuple(failure)
    if isinstance(error, Retry):
        return _again(error, failure, message, task, now)
    if isinstance(error, Ignore) or "celery.exceptions.Ignore" in names:
        return Refusal(failure, ignored=True)
    if isinstance(error, Reject) or "celery.exceptions.Reject" in names:
        return Refusal(failure, requeue=bool(getattr(error, "requeue", False)))
    return failure


def _again(
    retry: Retry, failure: ft.Failure, message: TaskMessage, task: Any, now: float
) -> Again | ft.Failure:
    why = failure.causes[0] if failure.causes else None
    if retry.exc is not None:
        why = _of(retry.exc, failure, why)
    if message.retries >= _most(retry, task):
        if why is not None:
            return why
        told = (
            f"Can't retry {message.task}[{message.id}] args:{message.args} kwargs:{message.kwargs}"
        )
        return ft.Failure(
            exception_str=told,
            exc_type_names=tuple(ft.Failure.from_exception(MaxRetriesExceeded())),
            traceback_str=failure.traceback_str,
            exc_args=(told,),
        )
    eta = retry.eta
    if eta is None:
        delay = retry.countdown
        if delay is None:
            delay = getattr(task, "default_retry_delay", DEFAULT_DELAY)
        eta = now + float(delay)
    return Again(eta, why, failure.traceback_str, retry.new_args, retry.new_kwargs)


def _most(retry: Retry, task: Any) -> float:
    if retry.max_retries is not None:
        return retry.max_retries
    most = getattr(task, "max_retries", DEFAULT_MAX_RETRIES)
    return math.inf if most is None else float(most)


def _of(error: BaseException, failure: ft.Failure, behind: ft.Failure | None) -> ft.Failure:
    """The failure of what was given to a `Retry`, which perhaps was never raised."""
    found = ft.Failure.from_exception(error)
    if behind is not None and tuple(behind) == tuple(found):
        return behind  # it is what was being handled, and knows where it came from
    return ft.Failure(
        (type(error), found.exception, None),
        exception_str=found.exception_str,
        exc_type_names=tuple(found),
        traceback_str=failure.traceback_str,
        exc_args=found.exception_args,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
