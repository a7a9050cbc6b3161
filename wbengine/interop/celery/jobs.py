"""How a message of Celery's is run: claimed, traced by Celery, executed in the pool of our worker.

Celery gives each message to its pool with a tracer, which stores the result, sends what follows,
and retries.  Here the tracer is called in a thread of this process; the task that it runs hands the
body to the pool of our worker, which has the slots, the limits and the child processes, and waits
for what comes of it.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import logging
import queue
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import celery
from celery import exceptions as theirs

from wbengine import exceptions, invocation, running
from wbengine.concurrency import limits
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based.worker_side import reporting, task_sources
from wbengine.interop.celery import claims, internals, protocol, request
from wbengine.types import failure as ft

__all__ = ["CURRENT", "Host", "Job", "call"]

LOG = logging.getLogger("wbengine.celery")

_FIELDS: Final = frozenset(
    one.name for one in (*protocol.HEADERS, *protocol.ARGUMENTS, *protocol.PROPERTIES)
)
#: Keys of a request that are Celery's own; others are headers of a user's.
_THEIRS: Final = _FIELDS | {
    *(one.name for one in (*protocol.EMBED, *protocol.VERSION_1, protocol.UTC)),
    "properties", "hostname", "delivery_info", "headers", "compression",
}  # fmt: skip
#: Fields that `current` tells: not when and where a message may run.
_TOLD: Final = _FIELDS - {"task", "lang", "meth", "eta", "expires", "timelimit"}

#: What of ours has a name of its own in Celery.
_ALIASES: Final[Mapping[type[BaseException], type[Exception]]] = {
    exceptions.SoftTimeLimitExceeded: theirs.SoftTimeLimitExceeded,
    exceptions.TimeLimitExceeded: theirs.TimeLimitExceeded,
    exceptions.WorkerLost: theirs.WorkerLostError,
}

#: The job whose tracer runs in this thread.
CURRENT: Final[contextvars.ContextVar[Job | None]] = contextvars.ContextVar("job", default=None)


@dataclass(frozen=True)
class Host:
    """What the jobs of a worker share.

    Without `owned` claims nothing keeps a task from running twice that is delivered twice; `system`
    is the kind of the broker.
    """

    context: task_sources.WorkerContext
    owned: claims.Claims | None
    system: str


@dataclass(eq=False)
class Job:
    """A message that Celery gave to the pool, until it is settled."""

    unit: ClassVar[None] = None

    delivery: internals.HostedRequest
    host: Host
    started: float | None = None
    ticket: Any = None
    #: Celery revoked it as it ran.
    terminated: bool = False
    #: Its process was lost, or the worker gave it up; a body may say so of others.
    lost: bool = False
    #: The worker gave it up.
    given_up: bool = False
    #: What came of it, here or of a run before.
    outcome: claims.Outcome | None = None
    #: It is another worker's, or goes back to its queue.
    dropped: bool = False
    #: For the headers of the messages that follow from it.
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    #: Gets what came of the body.
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        fields = self.delivery.fields
        self.id, self.task, self.limit = self.delivery.id, fields["task"], self.delivery.limit
        self.name = str(fields.get("shadow") or self.task)
        self.headers = {key: fields[key] for key in fields if key not in _THEIRS}
        self.flow = str(fields.get("root_id") or "")
        self.queue = str((fields.get("delivery_info") or {}).get("routing_key") or "")
        self.epoch = self.attempt = int(fields.get("retries") or 0) + 1
        self.key = self.id, self.epoch
        nesting = int(fields.get("replaced_task_nesting") or 0)
        key = claims.key_of(self.id, self.attempt - 1, nesting, self.task, self.delivery.body)
        self.run = claims.Run(key)

    def terminate(self, signal: int | None = None) -> None:
        """Celery revoked it, and wants it to end."""
        self.terminated = True
        if self.ticket is not None:
            self.ticket.cancel(0)  # Celery's workers kill a process at once, too

    def give_up(self) -> None:
        """The worker ends before it does."""
        self.given_up = True
        if self.ticket is not None:
            self.ticket.cancel(0)
        self.answers.put(
            ft.Failure.from_exception(exceptions.WorkerLost("the worker ended before the task did"))
        )

    def serve(self) -> float | None:
        """Claim and run it, or let Celery settle it; in how many seconds it is to be looked at
        again, if it is."""
        again = getattr(celery.current_app.tasks.get(self.task), "idempotent", False)
        said = claims.RUN
        if self.host.owned is not None:
            late = celery.current_app.conf.task_acks_late
            said = self.host.owned.take(self.run, again or late)
        if said.again_in is not None:
            return said.again_in
        self.outcome = said.outcome
        if not (said.run or said.lost):
            known = self.delivery.fields["delivery_info"]["redelivered"]
            LOG.log(
                logging.INFO if known else logging.WARNING,
                "task %s[%s] is not run: it has ended under this id already, with these arguments",
                self.name, self.id,
            )  # fmt: skip
        if said.lost:
            error = theirs.WorkerLostError("the worker was lost that ran this task")
            self.note({"kind": "failure", "failure": ft.Failure.from_exception(error)})
            self.delivery.fail(error)
            self._sent()
        elif said.run and not self.host.context.admit():
            self.release()
            self.hand_back()
        elif said.run and self.delivery.settle_revoked():  # as it waited for a lease
            self.note({"kind": "ignored"})
            self._sent()
        elif said.run or (self.outcome and self.outcome["kind"] != "ignored"):
            self.started = time.time()
            self._trace()
        else:
            self.delivery.fail(theirs.Ignore())  # all of it was told before
        return None

    def hand_back(self) -> None:
        """Have it go back to its queue; it did not begin."""
        self.delivery.fail(theirs.Reject("the worker takes nothing new", requeue=True))

    def _trace(self) -> None:
        token = CURRENT.set(self)
        try:
            self.delivery.accept()
            told = self.delivery.trace()
        except BaseException as error:
            self.delivery.fail(error)
            return
        finally:
            CURRENT.reset(token)
        if not self.dropped:
            if self.outcome is None:  # one of Celery's own tasks
                self.note({"kind": "ignored"})
            self._sent()
        self.delivery.end(told)

    def note(self, outcome: claims.Outcome) -> bool:
        self.outcome = outcome
        return self.host.owned is None or self.host.owned.finish(self.run, outcome)

    def _sent(self) -> None:
        if self.host.owned is not None:
            self.host.owned.sent(self.run)

    def release(self) -> None:
        self.dropped = True
        if self.host.owned is not None:
            self.host.owned.release(self.run)


# The body of one, in the thread of its tracer. ---------------------------------------------------


def call(
    host: Host,
    task: celery.Task,
    endpoint: endpoints.Endpoint,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run a task of ours for one of Celery's, and return or raise what Celery is to make of it.

    Another task may call it as a function, as `celery.map` does, and errbacks are called.
    """
    job = CURRENT.get()
    if job is None or task.request.called_directly:
        value = _run(host, job, task, endpoint, args, kwargs, queue.SimpleQueue())
        return _answer(task, _outcome_of(value, task), None)
    if job.outcome is None:
        value = _run(host, job, task, endpoint, args, kwargs, job.answers)
        told = _outcome_of(value, task)
        again = job.lost and endpoint.task_cls.idempotent
        if again or told.get("requeue"):
            job.release()
            raise theirs.Reject(told.get("text") or "its process was lost", requeue=True)
        if not job.note(told):
            job.dropped = True
            LOG.warning("task %s[%s] was taken over while it ran here", job.name, job.id)
            raise theirs.Ignore
        if job.terminated:
            raise theirs.Ignore  # that it was revoked is told already
    assert job.outcome is not None
    return _answer(task, job.outcome, job.limit.hard)


def _run(
    host: Host,
    job: Job | None,
    task: celery.Task,
    endpoint: endpoints.Endpoint,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    answers: queue.SimpleQueue[Any],
) -> Any:
    """What came of the body: its value, or a `Failure`."""
    message = _message_of(task.request, task.name, job)
    who = running.Request(
        message.id, message.retries + 1, message.retries + 1, message.root_id or "",
        host.context.identity,
    )  # fmt: skip
    args = [
        _message_of(one, one.task or message.task, job)
        if isinstance(one, type(task.request))
        else one
        for one in args
    ]
    work: running.Call = (
        request.execute, (endpoint, message, args, kwargs, who, host.context.loop)
    )  # fmt: skip
    if job is not None:
        for observer in host.context.reports.observers:
            job.trace_headers = {**job.trace_headers, **observer.task_began(job, host.system)}
        if running.sending is not None and host.context.loop is None:  # it goes into a child
            work = running.sending(job.key, work)
    limit = limits.UNLIMITED if job is None else job.limit
    ticket = host.context.pool.submit(*work, answers.put, None, limit, message.task)
    if job is not None:
        job.ticket = ticket
        if job.terminated or job.given_up:  # meanwhile
            ticket.cancel(0)
    found = answers.get()
    if not isinstance(found, invocation.Outcome):
        started = None if job is None else job.started
        if job is not None and isinstance(found, ft.Failure):
            job.lost = found.check(exceptions.WorkerLost) is not None
        found = invocation.Outcome(found, started=started, ended=time.time())
    if job is not None and not job.given_up:
        _report(job, found)
    return found.value


def _report(job: Job, outcome: invocation.Outcome) -> None:
    retried = outcome.failed and isinstance(outcome.value.exception, request.Retry)
    for observer in job.host.context.reports.observers:
        observer.task_ended(job, outcome, not outcome.failed or retried)
    if outcome.failed or reporting.LOG.isEnabledFor(logging.INFO):
        job.host.context.reports.ended(job, outcome)


# What Celery is to make of it. --------------------------------------------------------------------


def _outcome_of(value: Any, task: celery.Task) -> claims.Outcome:
    """What came of a run, in a form that can be kept."""
    if not isinstance(value, ft.Failure):
        return {"kind": "value", "value": value}
    error = value.exception
    if isinstance(error, request.Retry):
        why = error.exc or (value.causes[0].exception if value.causes else None)
        delay = task.default_retry_delay or 0 if error.countdown is None else error.countdown
        return {
            "kind": "retry",
            "eta": time.time() + delay if error.eta is None else error.eta,
            "most": error.max_retries,
            "args": error.new_args,
            "kwargs": error.new_kwargs,
            "failure": None if why is None else ft.Failure.from_exception(why),
        }
    if isinstance(error, request.Ignore) or value.check("celery.exceptions.Ignore"):
        return {"kind": "ignored"}
    if isinstance(error, request.Reject) or value.check("celery.exceptions.Reject"):
        requeue = bool(getattr(error, "requeue", False))
        return {"kind": "reject", "text": value.exception_str, "requeue": requeue}
    return {"kind": "failure", "failure": value}


def _answer(task: celery.Task, told: claims.Outcome, hard: float | None) -> Any:
    """Return or raise it."""
    match told["kind"]:
        case "value":
            return told["value"]
        case "ignored":
            raise theirs.Ignore
        case "reject":
            raise theirs.Reject(told["text"], requeue=told["requeue"])
        case "retry":
            due = dt.datetime.fromtimestamp(told["eta"], dt.timezone.utc)
            why = told["failure"] and _exception_of(told["failure"], None)
            raise task.retry(told["args"], told["kwargs"], why, eta=due, max_retries=told["most"])
    raise _exception_of(told["failure"], hard)


def _message_of(asked: Any, name: str, job: Job | None) -> protocol.TaskMessage:
    """The message that Celery made a request of, as `current` tells it."""
    told: dict[str, Any] = {name: getattr(asked, name, None) for name in _TOLD}
    told = {name: value for name, value in told.items() if value is not None}
    told.setdefault("id", "" if job is None else job.id)
    if told.get("stamped_headers"):
        told["stamped_headers"] = tuple(told["stamped_headers"])
    extra = {} if job is None else job.headers
    return protocol.TaskMessage(task=name, extra=extra, **told)


def _exception_of(failure: ft.Failure, hard: float | None) -> BaseException:
    """The exception that Celery's clients are to see."""
    names = tuple(failure)
    for ours, alias in _ALIASES.items():
        if failure.check(ours):
            told: list[Any] = [failure.exception_str]
            if ours is exceptions.SoftTimeLimitExceeded:
                told = []
            elif ours is exceptions.TimeLimitExceeded and hard is not None:
                told = [hard]
            behind = failure.exc_info
            return alias(*told).with_traceback(None if behind is None else behind[2])
    if "Exception" not in names:  # as SystemExit
        text = f"Worker exited prematurely: {names[0]}: {failure.exception_str}"
        lost: Exception = theirs.WorkerLostError(text)
        return lost
    if failure.exception is not None:
        try:
            failure.reraise()
        except BaseException as error:
            return _with_lines(error, failure)
    module, _, name = names[0].rpartition(".")
    cls = getattr(sys.modules.get(module or "builtins"), name, None)
    arguments = failure.exception_args or (failure.exception_str,)
    if isinstance(cls, type) and issubclass(cls, Exception):
        try:
            return cls(*arguments)
        except Exception as error:  # its constructor takes others
            LOG.debug("%s cannot be made again: %s", names[0], error)
    made: Exception = type(name, (Exception,), {"__module__": module or "builtins"})(*arguments)
    return made


def _with_lines(error: BaseException, failure: ft.Failure) -> BaseException:
    """What was behind an exception says where it came from, too."""
    behind: BaseException | None = error
    for cause in failure.causes:
        behind = behind and (behind.__cause__ or behind.__context__)
        if behind is not None and cause.exc_info is not None:
            behind.__traceback__ = cause.exc_info[2]
    return error
