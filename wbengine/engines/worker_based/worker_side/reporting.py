"""What people are told of the tasks of a worker: a line in the log, and calls of their own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from wbengine import _log_lines, _names, _secrets, invocation
from wbengine._terminal import visible
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based import protocol as pr

__all__ = [
    "ExceptionHandler",
    "FailedRequest",
    "ForeignJob",
    "Job",
    "TaskObserver",
    "Reports",
    "find_handlers",
]

LOG = logging.getLogger(__name__)
# How each task ended is told to its engine; here it is for whoever keeps a log of the worker.
LOG.addHandler(logging.NullHandler())

#: So much of an exception's message is in the log.
_SHOWN: Final = 300
#: Of a message so much is looked at.
_READ: Final = 10_000

_ENDED: Final = "task %.100r of request %s ended%s"


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request whose task failed on this worker, as exception handlers are told of it.

    `id` is the same for all tries to have this attempt done, `epoch` tells them apart.  `started`
    and `ended` are unix seconds; None where it never started.  `failure` is what the engine is
    told.
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


#: `(request, type, value, traceback)`: the last three of the exception, as far as this process has
#: it, else None.  What returns False ends the chain.
ExceptionHandler = Callable[
    [FailedRequest, type[BaseException] | None, BaseException | None, TracebackType | None], Any
]


def find_handlers(items: Iterable[Any]) -> tuple[ExceptionHandler, ...]:
    """The handlers in `items`: callables, or names of them (`module:function`).

    :raises ValueError: one is neither, or names nothing that can be called.
    :raises ImportError: a name cannot be imported.
    """
    found = []
    for item in items:
        thing = _names.load(item) if isinstance(item, str) else item
        if not callable(thing):
            raise ValueError(f"exception handler {item!r} cannot be called")
        found.append(thing)
    return tuple(found)


class Job(Protocol):
    """What is told of a task that ended."""

    @property
    def id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def flow(self) -> str: ...
    @property
    def unit(self) -> pr.WorkUnit | None: ...


class ForeignJob(Job, Protocol):
    """What is told of a task that another source brought: also what it is called there, where it
    came from, and what its sender said in its headers."""

    @property
    def key(self) -> tuple[str, int]: ...
    @property
    def task(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, Any]: ...


class TaskObserver(Protocol):
    """What is told of tasks of other sources, from any thread: it must neither wait nor raise."""

    def task_began(self, job: ForeignJob, system: str) -> Mapping[str, str]:
        """It is about to be called; again, where more is called for it.  `system` is what carried
        its message.  Returns headers for the messages that follow from it."""

    def task_ended(self, job: ForeignJob, outcome: invocation.Outcome, well: bool) -> None:
        """It ended; `well`: it need not be done again."""


class Reports:
    """Says how tasks begin and end.  Thread-safe; called in the slot of the task that ended.

    Each failure is told to the handlers, in order, until one returns False; what a handler raises
    is logged, and the next one is called.  Where none ended it, the log has the last word.

    Where a log is written by our own command, successes are when `tell` is called, by anybody.
    """

    def __init__(self, worker: str, handlers: Iterable[ExceptionHandler] = ()) -> None:
        self._worker = worker
        self._handlers = tuple(handlers)
        #: Told of the tasks of other sources.
        self.observers: tuple[TaskObserver, ...] = ()
        #: Of successes, in order: when, and what.
        self.untold: deque[tuple[float, tuple[str, str, str]]] = deque()

    def started(self, job: Job) -> None:
        LOG.debug("task %.100r of request %s (epoch %d) starts", job.name, job.id, job.epoch)

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        """Never raises; as slow as the handlers are.  Of success only if somebody wants to know."""
        if outcome.failed:
            self._failed(job, outcome)
        elif _log_lines.is_installed():
            self.untold.append((time.time(), (job.name, job.id, _took(outcome))))
        else:
            LOG.info(_ENDED, job.name, job.id, _took(outcome))

    def tell(self) -> None:
        """Log what ended well until now.  Any thread."""
        told = []
        while self.untold:
            try:
                told.append(self.untold.popleft())
            except IndexError:  # told by another thread
                break
        if told:
            _log_lines.write(LOG, logging.INFO, _ENDED, told)

    def _failed(self, job: Job, outcome: invocation.Outcome) -> None:
        self.tell()  # in order
        failure: ft.Failure = outcome.value
        if self._handlers and self._handled(self._describe(job, outcome), failure):
            return
        names = tuple(failure)
        # The values of this very request that are secret by their names, wherever they are said.
        given = () if job.unit is None else (job.unit.arguments, job.unit.result)
        known = _secrets.SecretMatcher(_secrets.found_in((*given, failure)))
        LOG.warning(
            "task %.100r of request %s failed%s: %s: %s",
            job.name,
            job.id,
            _took(outcome),
            names[0] if names else "an error",
            _line(_shown(failure.exception_str[:_READ], known)[:_SHOWN]),
        )
        if LOG.isEnabledFor(logging.DEBUG):
            told = _shown(failure.traceback_str or "", known)
            LOG.debug("task %r of request %s: %s", job.name, job.id, told)

    def _handled(self, request: FailedRequest, failure: ft.Failure) -> bool:
        info = failure.exc_info or (None, None, None)
        for handler in self._handlers:
            try:
                if handler(request, *info) is False:
                    return True
            except BaseException:  # also one that would end the thread
                LOG.exception("exception handler %s failed", _names.dotted(handler))
        return False

    def _describe(self, job: Job, outcome: invocation.Outcome) -> FailedRequest:
        unit = job.unit
        return FailedRequest(
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


def _took(outcome: invocation.Outcome) -> str:
    if outcome.started is None or outcome.ended is None:
        return ""
    return f" after {max(0.0, outcome.ended - outcome.started):.3f} s"


def _shown(text: str, known: _secrets.SecretMatcher) -> str:
    return _secrets.masked(known.hide(text, _secrets.MASK))


def _line(text: str) -> str:
    """What a terminal shows in one line, whatever the text would have it do."""
    return visible(" ".join(text.split()))
