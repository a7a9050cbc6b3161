"""The execution of a Celery message: claimed, traced by Celery, executed in the pool of the worker.

Celery submits each message to its pool together with a tracer, which stores the result, sends
follow-up messages and retries. The tracer runs in a thread of this process. The task that it calls
submits the work to the pool of the worker and waits for the result.
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
import kombu.exceptions
from celery import exceptions as theirs

from wbengine import exceptions, running
from wbengine._calls import invocation
from wbengine._concurrency import time_limits
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based._worker_side import reporting, task_sources
from wbengine.interop.celery import _internals, _protocol, _request, _run_claims
from wbengine.types import failure as ft

__all__ = ["CURRENT", "Host", "Job", "call"]

LOG = logging.getLogger("wbengine.celery")

_FIELDS: Final = frozenset(
    one.name for one in (*_protocol.HEADERS, *_protocol.ARGUMENTS, *_protocol.PROPERTIES)
)
#: Celery's own keys of a request; all others are headers of users.
_CELERY_FIELDS: Final = _FIELDS | {
    *(one.name for one in (*_protocol.EMBED, *_protocol.VERSION_1, _protocol.UTC)),
    "properties", "hostname", "delivery_info", "headers", "compression",
}  # fmt: skip
#: Fields that `current` contains: all except those that define when and where a message may run.
_SHOWN_FIELDS: Final = _FIELDS - {"task", "lang", "meth", "eta", "expires", "timelimit"}

#: Exceptions of wbengine that have an equivalent in Celery.
_ALIASES: Final[Mapping[type[BaseException], type[Exception]]] = {
    exceptions.SoftTimeLimitExceeded: theirs.SoftTimeLimitExceeded,
    exceptions.TimeLimitExceeded: theirs.TimeLimitExceeded,
    exceptions.WorkerLost: theirs.WorkerLostError,
}

#: The job whose tracer runs in this thread.
CURRENT: Final[contextvars.ContextVar[Job | None]] = contextvars.ContextVar("job", default=None)


@dataclass(frozen=True)
class Host:
    """The data that all jobs of a worker share.

    If `owned` is None, a redelivered task may run twice. `system` is the kind of the broker.
    """

    context: task_sources.WorkerContext
    owned: _run_claims.Claims | None
    system: str


@dataclass(eq=False)
class Job:
    """A message that Celery submitted to the pool, until it is settled."""

    unit: ClassVar[None] = None

    delivery: _internals.HostedRequest
    host: Host
    started: float | None = None
    ticket: Any = None
    #: Whether Celery revoked the task while it ran.
    terminated: bool = False
    #: Whether its process was lost, and whether the worker gave it up. The failure alone does not
    #: prove a loss: a task may raise `WorkerLost` about other tasks.
    lost: bool = False
    given_up: bool = False
    outcome: _run_claims.Outcome | None = None
    #: Whether another worker owns the run, or the message is requeued.
    dropped: bool = False
    #: Trace headers for the follow-up messages.
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        fields = self.delivery.fields
        self.id, self.task, self.limit = self.delivery.id, fields["task"], self.delivery.limit
        self.name = str(fields.get("shadow") or self.task)
        self.headers = {key: fields[key] for key in fields if key not in _CELERY_FIELDS}
        self.flow = str(fields.get("root_id") or "")
        self.queue = str((fields.get("delivery_info") or {}).get("routing_key") or "")
        self.epoch = self.attempt = int(fields.get("retries") or 0) + 1
        self.key = self.id, self.epoch
        nesting = int(fields.get("replaced_task_nesting") or 0)
        key = _run_claims.key_of(self.id, self.attempt - 1, nesting, self.task, self.delivery.body)
        self.run = _run_claims.Run(key)

    def terminate(self, signal: int | None = None) -> None:
        """End the run because Celery revoked the task."""
        self.terminated = True
        if self.ticket is not None:
            self.ticket.cancel(0)  # Celery's workers also kill the process immediately

    def give_up(self) -> None:
        """End the run because the worker stops."""
        self.given_up = True
        if self.ticket is not None:
            self.ticket.cancel(0)
        self.answers.put(
            ft.Failure.from_exception(
                exceptions.WorkerLost("the worker stopped before the task ended")
            )
        )

    def serve(self) -> float | None:
        """Claim and run the task, or let Celery settle the message.

        :returns: None, or the number of seconds after which to call `serve` again.
        """
        is_idempotent = getattr(celery.current_app.tasks.get(self.task), "idempotent", False)
        verdict = _run_claims.RUN
        if self.host.owned is not None:
            acks_late = celery.current_app.conf.task_acks_late
            verdict = self.host.owned.claim(self.run, is_idempotent or acks_late)
        if verdict.retry_after is not None:
            return verdict.retry_after
        self.outcome = verdict.outcome
        if not (verdict.run or verdict.lost):
            is_redelivered = self.delivery.fields["delivery_info"]["redelivered"]
            LOG.log(
                logging.INFO if is_redelivered else logging.WARNING,
                "task %s[%s] does not run: it already ended with this id and these arguments",
                self.name, self.id,
            )  # fmt: skip
        if verdict.lost:
            error = theirs.WorkerLostError("the worker that ran this task was lost")
            self.store_outcome({"kind": "failure", "failure": ft.Failure.from_exception(error)})
            self.delivery.fail(error)
            self._sent()
        elif verdict.run and not self.host.context.admit():
            self.release()
            self.requeue()
        elif verdict.run and self.delivery.settle_revoked():  # Revoked while it waited for a claim.
            self.store_outcome({"kind": "ignored"})
            self._sent()
        elif verdict.run or (self.outcome and self.outcome["kind"] != "ignored"):
            self.started = time.time()
            self._trace()
        else:
            self.delivery.fail(theirs.Ignore())  # All messages were already sent.
        return None

    def requeue(self) -> None:
        """Requeue the message of a run that did not begin."""
        self.delivery.fail(theirs.Reject("the worker accepts no more tasks", requeue=True))

    def _trace(self) -> None:
        token = CURRENT.set(self)
        try:
            self.delivery.accept()
            result = self.delivery.trace()
        except BaseException as error:
            self.delivery.fail(error)
            return
        finally:
            CURRENT.reset(token)
        if not self.dropped:
            if self.outcome is None:  # one of Celery's own tasks
                self.store_outcome({"kind": "ignored"})
            # A failure despite a value: Celery could not send the follow-up messages.
            if not (self.outcome and self.outcome["kind"] == "value" and result[0]):
                self._sent()
        self.delivery.end(result)

    def store_outcome(self, outcome: _run_claims.Outcome) -> bool:
        self.outcome = outcome
        return self.host.owned is None or self.host.owned.finish(self.run, outcome)

    def _sent(self) -> None:
        if self.host.owned is not None:
            self.host.owned.sent(self.run)

    def release(self) -> None:
        self.dropped = True
        if self.host.owned is not None:
            self.host.owned.release(self.run)


def call(
    host: Host,
    task: celery.Task,
    endpoint: endpoints.Endpoint,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run a wbengine task for a Celery task, and return or raise what Celery expects.

    Besides `Job.serve`, the callers are tasks that call this task as a function (as `celery.map`
    does), and errbacks.
    """
    job = CURRENT.get()
    if job is None or task.request.called_directly:
        value = _run(host, job, task, endpoint, args, kwargs, queue.SimpleQueue())
        return _return_outcome(task, _outcome_of(value, task), None)
    if job.outcome is None:
        value = _run(host, job, task, endpoint, args, kwargs, job.answers)
        outcome = _outcome_of(value, task)
        reruns = job.lost and endpoint.task_cls.idempotent
        if reruns or outcome.get("requeue"):
            job.release()
            raise theirs.Reject(outcome.get("text") or "its child process was lost", requeue=True)
        if not job.store_outcome(outcome):
            job.dropped = True
            LOG.warning(
                "task %s[%s] was taken over by another worker while it ran here", job.name, job.id
            )
            raise theirs.Ignore
        if job.terminated:
            raise theirs.Ignore  # Celery has already reported the revocation
    assert job.outcome is not None
    try:
        return _return_outcome(task, job.outcome, job.limit.hard)
    except theirs.Reject as error:
        if host.owned is None or not isinstance(error.reason, kombu.exceptions.OperationalError):
            raise
        job.dropped = True  # The retry was not sent. The redelivered message sends it.
        raise theirs.Reject(error.reason, requeue=True) from error


def _run(
    host: Host,
    job: Job | None,
    task: celery.Task,
    endpoint: endpoints.Endpoint,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    answers: queue.SimpleQueue[Any],
) -> Any:
    message = _message_of(task.request, task.name, job)
    request_info = running.Request(
        message.id, message.retries + 1, message.retries + 1, message.root_id or "",
        host.context.identity,
    )  # fmt: skip
    args = [
        _message_of(argument, argument.task or message.task, job)
        if isinstance(argument, type(task.request))
        else argument
        for argument in args
    ]
    call: running.Call = (
        _request.execute, (endpoint, message, args, kwargs, request_info, host.context.loop)
    )  # fmt: skip
    if job is not None:
        for observer in host.context.reports.observers:
            job.trace_headers = {**job.trace_headers, **observer.task_began(job, host.system)}
        # the call goes to a child process
        if running.sending is not None and host.context.loop is None:
            call = running.sending(job.key, call)
    limit = time_limits.UNLIMITED if job is None else job.limit
    ticket = host.context.pool.submit(*call, answers.put, None, limit, message.task)
    if job is not None:
        job.ticket = ticket
        if job.terminated or job.given_up:  # cancelled before `ticket` was set
            ticket.cancel(0)
    outcome = answers.get()
    if not isinstance(outcome, invocation.Outcome):
        started = None if job is None else job.started
        if job is not None and isinstance(outcome, ft.Failure):
            job.lost = outcome.check(exceptions.WorkerLost) is not None
        outcome = invocation.Outcome(outcome, started=started, ended=time.time())
    if job is not None and not job.given_up:
        _report(job, outcome)
    return outcome.value


def _report(job: Job, outcome: invocation.Outcome) -> None:
    retried = outcome.failed and isinstance(outcome.value.exception, _request.Retry)
    for observer in job.host.context.reports.observers:
        observer.task_ended(job, outcome, not outcome.failed or retried)
    if outcome.failed or reporting.LOG.isEnabledFor(logging.INFO):
        job.host.context.reports.ended(job, outcome)


def _outcome_of(value: Any, task: celery.Task) -> _run_claims.Outcome:
    if not isinstance(value, ft.Failure):
        return {"kind": "value", "value": value}
    error = value.exception
    if isinstance(error, _request.Retry):
        cause = error.exc or (value.causes[0].exception if value.causes else None)
        delay = task.default_retry_delay or 0 if error.countdown is None else error.countdown
        return {
            "kind": "retry",
            "eta": time.time() + delay if error.eta is None else error.eta,
            "most": error.max_retries,
            "args": error.new_args,
            "kwargs": error.new_kwargs,
            "failure": None if cause is None else ft.Failure.from_exception(cause),
        }
    if isinstance(error, _request.Ignore) or value.check("celery.exceptions.Ignore"):
        return {"kind": "ignored"}
    if isinstance(error, _request.Reject) or value.check("celery.exceptions.Reject"):
        requeue = bool(getattr(error, "requeue", False))
        return {"kind": "reject", "text": value.exception_str, "requeue": requeue}
    return {"kind": "failure", "failure": value}


def _return_outcome(task: celery.Task, outcome: _run_claims.Outcome, hard: float | None) -> Any:
    match outcome["kind"]:
        case "value":
            return outcome["value"]
        case "ignored":
            raise theirs.Ignore
        case "reject":
            raise theirs.Reject(outcome["text"], requeue=outcome["requeue"])
        case "retry":
            eta = dt.datetime.fromtimestamp(outcome["eta"], dt.UTC)
            cause = outcome["failure"] and _exception_of(outcome["failure"], None)
            raise task.retry(
                outcome["args"], outcome["kwargs"], cause, eta=eta, max_retries=outcome["most"]
            )
    raise _exception_of(outcome["failure"], hard)


def _message_of(celery_request: Any, name: str, job: Job | None) -> _protocol.TaskMessage:
    fields: dict[str, Any] = {name: getattr(celery_request, name, None) for name in _SHOWN_FIELDS}
    fields = {name: value for name, value in fields.items() if value is not None}
    fields.setdefault("id", "" if job is None else job.id)
    if fields.get("stamped_headers"):
        fields["stamped_headers"] = tuple(fields["stamped_headers"])
    extra = {} if job is None else job.headers
    return _protocol.TaskMessage(task=name, extra=extra, **fields)


def _exception_of(failure: ft.Failure, hard: float | None) -> BaseException:
    names = tuple(failure)
    for ours, alias in _ALIASES.items():
        if failure.check(ours):
            alias_args: list[Any] = [failure.exception_str]
            if ours is exceptions.SoftTimeLimitExceeded:
                alias_args = []
            elif ours is exceptions.TimeLimitExceeded and hard is not None:
                alias_args = [hard]
            exc_info = failure.exc_info
            return alias(*alias_args).with_traceback(None if exc_info is None else exc_info[2])
    if "Exception" not in names:  # such as SystemExit
        text = f"Worker exited prematurely: {names[0]}: {failure.exception_str}"
        lost: Exception = theirs.WorkerLostError(text)
        return lost
    if failure.exception is not None:
        try:
            failure.reraise()
        except BaseException as error:
            return error
    module, _, name = names[0].rpartition(".")
    cls = getattr(sys.modules.get(module or "builtins"), name, None)
    arguments = failure.exception_args or (failure.exception_str,)
    if isinstance(cls, type) and issubclass(cls, Exception):
        try:
            return cls(*arguments)
        except Exception as error:  # the constructor has another signature
            LOG.debug("%s cannot be constructed from its arguments: %s", names[0], error)
    exception: Exception = type(name, (Exception,), {"__module__": module or "builtins"})(
        *arguments
    )
    return exception
