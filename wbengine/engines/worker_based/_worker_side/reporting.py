"""Log the tasks of a worker, and call exception handlers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from wbengine import exceptions
from wbengine._calls import invocation
from wbengine._introspection import object_names
from wbengine._logs import line_format, record_fields
from wbengine._security import masking
from wbengine._text.terminal_text import visible
from wbengine.types import _failure_text
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based import protocol as pr

LOG = logging.getLogger(__name__)
# The root logger must not print records of tasks if the program configures no logging.
LOG.addHandler(logging.NullHandler())

#: Maximum number of characters of an exception's message in the log.
_MAX_SHOWN_LENGTH: Final = 300
#: Maximum length of an exception's message that is searched for secrets.
_MAX_SEARCHED_LENGTH: Final = 10_000

_ENDED: Final = "task %.100r of request %s ended%s"
_CANCELLED: Final = "task %.100r of request %s was cancelled%s"


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request whose task failed on this worker, for exception handlers.

    `id` is equal for all copies of this attempt; `epoch` distinguishes them. `started` and `ended`
    are Unix time, None if the task did not start. The engine receives the `failure`.
    """

    id: str
    epoch: int
    task: str
    task_cls: str
    action: str
    attempt: int
    flow: str
    worker: str
    failure: ft.Failure
    started: float | None = None
    ended: float | None = None


#: `(request, type, value, traceback)`. The last three are None if the exception does not exist in
#: this process. If a handler returns False, later handlers are not called.
ExceptionHandler = Callable[
    [FailedRequest, type[BaseException] | None, BaseException | None, TracebackType | None], Any
]


def find_handlers(items: Iterable[Any]) -> tuple[ExceptionHandler, ...]:
    """Return the handlers in `items`: callables, or their names (`module:function`).

    :raises ValueError: if an item is not callable.
    :raises ImportError: if a name cannot be imported.
    """
    handlers = []
    for item in items:
        handler = object_names.load(item) if isinstance(item, str) else item
        if not callable(handler):
            raise ValueError(f"exception handler {item!r} must be callable")
        handlers.append(handler)
    return tuple(handlers)


class Job(Protocol):
    """The logged attributes of a completed task."""

    id: str
    epoch: int
    name: str
    attempt: int
    flow: str

    @property
    def unit(self) -> pr.WorkUnit | None: ...


class ForeignJob(Job, Protocol):
    """A task of another system, with its name, queue and headers in that system."""

    key: tuple[str, int]
    task: str
    queue: str

    @property
    def headers(self) -> Mapping[str, Any]: ...


class TaskObserver(Protocol):
    """Receives tasks of other systems, in any thread. Methods must not block or raise."""

    def task_began(self, job: ForeignJob, system: str) -> Mapping[str, str]:
        """Prepare to call a task. Repeated for each further call of the task.

        :param system: the system that delivered its message.
        :returns: headers for messages that the task publishes.
        """

    def task_ended(self, job: ForeignJob, outcome: invocation.Outcome, well: bool) -> None:
        """Handle the end of a task. If `well`, the task need not run again."""


class Reports:
    """Logs starts and ends of tasks. Thread-safe; called in the slot of the completed task.

    Each failure is passed to the handlers in order, until one returns False. If none does, the
    failure is logged. If a handler raises, the exception is logged and the next handler is called.

    With the log format of wbengine's command line, successes are collected until `flush`.
    """

    def __init__(self, worker: str, handlers: Iterable[ExceptionHandler] = ()) -> None:
        self._worker = worker
        self._handlers = tuple(handlers)
        self.observers: tuple[TaskObserver, ...] = ()
        #: Successes that are not logged yet, in order: time and arguments.
        self.unlogged: deque[tuple[float, tuple[str, str, str]]] = deque()

    def started(self, job: Job) -> None:
        LOG.debug(
            *("task %.100r of request %s (epoch %d) starts", job.name, job.id, job.epoch),
            extra=_fields(job),
        )

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        """Log the end of a task, successes at INFO. Never raises; waits for the handlers."""
        if outcome.failed:
            self._failed(job, outcome)
        elif line_format.is_installed():
            self.unlogged.append((time.time(), (job.name, job.id, _took(outcome))))
        else:
            LOG.info(_ENDED, job.name, job.id, _took(outcome), extra=_fields(job))

    def flush(self) -> None:
        """Log the collected successes. Any thread may call this."""
        records = []
        try:
            while True:
                records.append(self.unlogged.popleft())
        except IndexError:  # Other threads may remove records meanwhile.
            pass
        if records:
            line_format.write(LOG, logging.INFO, _ENDED, records)

    def _failed(self, job: Job, outcome: invocation.Outcome) -> None:
        self.flush()  # Keeps the order of the log.
        failure: ft.Failure = outcome.value
        if self._handled(job, outcome):
            return
        if failure.check(exceptions.Cancelled):
            LOG.info(_CANCELLED, job.name, job.id, _took(outcome), extra=_fields(job))
            return
        # Values under secret names are masked, also inside the message of the exception.
        values = () if job.unit is None else (job.unit.arguments, job.unit.result)
        secrets = masking.SecretMatcher(masking.secrets_in((*values, failure)))
        message = _shown(failure.exception_str[:_MAX_SEARCHED_LENGTH], secrets)
        LOG.warning(
            "task %.100r of request %s failed%s: %s: %s",
            job.name,
            job.id,
            _took(outcome),
            next(iter(failure), "an error"),
            visible(" ".join(message[:_MAX_SHOWN_LENGTH].split())),
            extra=_fields(job),
        )
        if LOG.isEnabledFor(logging.DEBUG):
            text = _failure_text.text_of(failure, lambda part: _described(part, secrets))
            LOG.debug("task %r of request %s:\n%s", job.name, job.id, text, extra=_fields(job))

    def _handled(self, job: Job, outcome: invocation.Outcome) -> bool:
        if not self._handlers:
            return False
        unit = job.unit
        request = FailedRequest(
            job.id,
            job.epoch,
            job.name,
            unit.task_cls if unit is not None else "",
            unit.action if unit is not None else "",
            job.attempt,
            job.flow,
            self._worker,
            outcome.value,
            outcome.started,
            outcome.ended,
        )
        info = request.failure.exc_info or (None, None, None)
        for handler in self._handlers:
            try:
                if handler(request, *info) is False:
                    return True
            except BaseException:  # Also exceptions that would end the thread.
                LOG.exception("exception handler %s failed", object_names.dotted(handler))
        return False


def _fields(job: Job) -> dict[str, object]:
    return record_fields.of_call(job.flow, job.name, job.id, job.attempt)


def _took(outcome: invocation.Outcome) -> str:
    if outcome.started is None or outcome.ended is None:
        return ""
    return f" after {max(0.0, outcome.ended - outcome.started):.3f} s"


def _shown(text: str, known: masking.SecretMatcher) -> str:
    return masking.masked(known.hide(text, masking.MASK))


def _described(failure: ft.Failure, known: masking.SecretMatcher) -> tuple[str, str]:
    entries, text = _failure_text.described(failure)
    return _shown(entries, known), _shown(text, known)
