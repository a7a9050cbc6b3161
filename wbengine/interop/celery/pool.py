"""Where Celery's worker runs tasks: Celery's own tracer, and our pool below it.

Celery gives each message to its pool with a tracer, which stores the result, sends what follows,
and retries.  Here the tracer is called in a thread of this process; the task that it runs hands the
body to the pool of our worker, which has the slots, the limits and the child processes, and waits
for what comes of it.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, ClassVar, Final

import celery
from billiard.einfo import ExceptionInfo
from celery import exceptions as theirs
from celery.concurrency import base
from celery.utils.serialization import create_exception_cls

from wbengine import exceptions, invocation, limits, running
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based.worker_side import guests, reporting
from wbengine.interop import celery as package
from wbengine.interop.celery import claims, request
from wbengine.types import failure as ft

__all__ = ["HostedPool", "Job", "Runner"]

LOG = logging.getLogger("wbengine.celery")

#: Keys of a request that are Celery's own; others are headers of a user's.
_THEIRS: Final = frozenset((
    "lang", "task", "id", "root_id", "parent_id", "group", "group_index", "meth", "shadow", "eta",
    "expires", "retries", "timelimit", "argsrepr", "kwargsrepr", "origin", "ignore_result",
    "replaced_task_nesting", "stamped_headers", "stamps", "properties", "reply_to",
    "correlation_id", "hostname", "delivery_info", "args", "kwargs", "headers", "taskset", "utc",
    "callbacks", "errbacks", "chain", "chord", "compression",
))  # fmt: skip

#: Fields of a message that `current` tells.
_TOLD: Final = (
    "id", "args", "kwargs", "shadow", "root_id", "parent_id", "group", "group_index", "retries",
    "argsrepr", "kwargsrepr", "origin", "replaced_task_nesting", "ignore_result",
    "stamped_headers", "stamps", "callbacks", "errbacks", "chain", "chord", "reply_to",
    "correlation_id",
)  # fmt: skip

#: What of ours has a name of its own in Celery.
_ALIASES: Final[Mapping[type[BaseException], type[Exception]]] = {
    exceptions.SoftTimeLimitExceeded: theirs.SoftTimeLimitExceeded,
    exceptions.TimeLimitExceeded: theirs.TimeLimitExceeded,
    exceptions.WorkerLost: theirs.WorkerLostError,
    request.MaxRetriesExceeded: theirs.MaxRetriesExceededError,
}

#: The job whose tracer runs in this thread.
CURRENT: Final[contextvars.ContextVar[Job | None]] = contextvars.ContextVar("job", default=None)


class Job:
    """A message that Celery gave to the pool, until it is settled."""

    unit: ClassVar[None] = None

    def __init__(
        self,
        name: str,
        id: str,
        message: Mapping[str, Any],
        limit: limits.TimeLimit,
        trace: Callable[[], Any],
        options: Mapping[str, Callable[..., Any]],
    ) -> None:
        self.id = id
        self.task = name
        self.name = str(message.get("shadow") or name)
        self.headers = {key: message[key] for key in message if key not in _THEIRS}
        self.epoch = self.attempt = int(message.get("retries") or 0) + 1
        self.flow = str(message.get("root_id") or "")
        told = message.get("delivery_info") or {}
        self.queue = str(told.get("routing_key") or "")
        nesting = int(message.get("replaced_task_nesting") or 0)
        self.run = claims.Run(claims.key_of(id, self.epoch - 1, nesting))
        self.limit = limit
        self.key = id, self.epoch
        self.trace = trace
        self.accept = options["accept_callback"]
        self.ended = options["callback"]
        self.failed = options["error_callback"]
        self.started: float | None = None
        self.ticket: Any = None
        #: Celery revoked it as it ran.
        self.terminated = False
        #: The worker gave it up.
        self.given_up = False
        #: A worker that died had claimed it, and it may not run again.
        self.lost = False
        #: What came of it before: that is told again.
        self.outcome: dict[str, Any] | None = None
        #: It is to be claimed by others: it goes back to its queue, or is another worker's.
        self.dropped = False
        #: For the headers of the messages that follow from it.
        self.handed_on: Mapping[str, str] = {}
        #: What came of it is noted in the ledger.
        self.noted = False
        #: Set when its body has ended, or is not waited for any more.
        self.over = threading.Event()

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
        self.over.set()

    def settle(self, error: Exception) -> None:
        """Let Celery settle it without a run."""
        try:
            raise error
        except type(error):
            self.failed(ExceptionInfo())


class HostedPool(base.BasePool):  # type: ignore[misc]
    """Celery's view of our pool; a subclass knows the `runner` that does the work.

    With `uses_semaphore` Celery hands out as many jobs as there are slots, and looks whether each
    was revoked, or is too late, just before.
    """

    uses_semaphore = True
    signal_safe = False
    runner: ClassVar[Runner]

    def on_start(self) -> None:
        self.runner.start(self.app, self.limit)

    def register_with_event_loop(self, hub: Any) -> None:
        self.runner.connected(hub, self.options["semaphore"])

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Job:
        name, id, message = args[:3]
        limit = limits.TimeLimit(soft_timeout or None, timeout or None)
        trace = functools.partial(target, *args, **(kwargs or {}))
        job = Job(name, id, message, limit, trace, options)
        self.runner.take(job)
        return job

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """The job itself is told, as what `on_apply` returned."""

    def on_stop(self) -> None:
        self.runner.stop()

    on_terminate = on_stop


class Runner:
    """Claims, traces and settles the jobs of one worker, as many at once as it has slots.

    `owned` may be None: then nothing keeps a task from running twice that is delivered twice.
    """

    def __init__(self, host: guests.Host, owned: claims.Claims | None, system: str) -> None:
        self._host = host
        self._claims = owned
        self._system = system
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: set[Job] = set()
        self._timers: set[threading.Timer] = set()
        self._threads: futures.ThreadPoolExecutor | None = None
        self._hub: Any = None
        self._semaphore: Any = None
        #: Nothing is to begin: what comes goes back.
        self.closed = False
        self.began = 0
        self.taken = -float("inf")

    def start(self, app: celery.Celery, slots: int) -> None:
        self._threads = futures.ThreadPoolExecutor(slots, "wbengine-celery", app.set_current)

    def connected(self, hub: Any, semaphore: Any) -> None:
        self._hub, self._semaphore = hub, semaphore

    @property
    def running(self) -> list[Job]:
        """The jobs whose tasks run."""
        with self._lock:
            return [job for job in self._jobs if job.started is not None]

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until all is settled that runs or is settled now; False if time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, timeout)

    def close(self) -> None:
        """Let nothing begin any more; what waits to be looked at again stays unacknowledged."""
        self.closed = True
        with self._lock:
            timers, self._timers = self._timers, set()
        for timer in timers:
            timer.cancel()

    def stop(self) -> None:
        self.close()
        if self._threads is not None:
            self._threads.shutdown(wait=not any(job.given_up for job in self.running))

    def give_up(self) -> None:
        for job in self.running:
            job.give_up()

    # One job.

    def take(self, job: Job) -> None:
        """Do what Celery asks for; in the thread of its loop, with one of its slots."""
        assert self._threads is not None
        self.taken = time.monotonic()
        with self._lock:
            self._jobs.add(job)
        self._threads.submit(self._serve, job)

    def _serve(self, job: Job) -> None:
        later = None
        try:
            later = self._begin(job)
        except Exception:
            LOG.exception("task %s[%s] of Celery's cannot be settled", job.name, job.id)
        finally:
            with self._changed:
                self._jobs.discard(job)
                self._changed.notify_all()
            self._hub.call_soon(self._semaphore.release)
        if later is not None:
            self._put_off(job, later)

    def _put_off(self, job: Job, seconds: float) -> None:
        timer = threading.Timer(seconds, self._look_again, (job,))
        timer.daemon = True
        timer.job = job  # type: ignore[attr-defined]
        with self._lock:
            if not self.closed:
                self._timers.add(timer)
                timer.start()

    def _look_again(self, job: Job) -> None:
        with self._lock:
            self._timers = {timer for timer in self._timers if timer.is_alive()}
        self._hub.call_soon(self._semaphore.acquire, self.take, job)

    def _begin(self, job: Job) -> float | None:
        """Claim and run it; when it is to be looked at again, if it is."""
        if self.closed:
            job.settle(theirs.Reject("the worker takes nothing new", requeue=True))
            return None
        if self._claims is not None:
            said = self._claims.take(job.run, self._may_run_again(job))
            if said.again_in is not None:
                return said.again_in
            if not (said.run or said.lost or said.outcome):
                job.settle(theirs.Ignore())  # all of it was told before
                return None
            job.lost, job.outcome = said.lost, said.outcome
        if not (job.lost or job.outcome) and not self._host.admit():
            if self._claims is not None:
                self._claims.release(job.run)
            job.settle(theirs.Reject("the worker takes nothing new", requeue=True))
            return None
        job.started = time.time()
        self.began += 1
        self._trace(job)
        return None

    def _may_run_again(self, job: Job) -> bool:
        task = celery.current_app.tasks.get(job.task)
        return getattr(task, "idempotent", False) or celery.current_app.conf.task_acks_late

    def _trace(self, job: Job) -> None:
        token = CURRENT.set(job)
        try:
            job.accept(os.getpid(), time.monotonic())
            told = job.trace()
        except BaseException:
            job.failed(ExceptionInfo())
            return
        finally:
            CURRENT.reset(token)
        if self._claims is not None and not job.dropped:
            if not job.noted:  # one of Celery's own tasks, which told nothing
                self._claims.finish(job.run, {"kind": "ignored"})
            self._claims.sent(job.run)
        job.ended(told)

    # The body of one, in the thread of its tracer.

    def call(
        self,
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
            value = self._run(job, task, endpoint, args, kwargs)
            return self._translate(task, self._describe(value, task), value)
        if job.outcome is not None:
            job.noted = True
            return self._translate(task, job.outcome, None)
        if job.lost:
            value = _failure(theirs.WorkerLostError("the worker was lost that ran this task"))
        else:
            value = self._run(job, task, endpoint, args, kwargs)
        told = self._describe(value, task)
        requeue = told["kind"] == "lost" and endpoint.task_cls.idempotent and not job.lost
        if requeue or (told["kind"] == "reject" and told["requeue"]):
            job.dropped = True
            if self._claims is not None:
                self._claims.release(job.run)
            raise theirs.Reject(told.get("text") or "its process was lost", requeue=True)
        job.noted = True
        if self._claims is not None and not self._finish(job, told):
            job.dropped = True
            LOG.warning("task %s[%s] was taken over while it ran here", job.name, job.id)
            raise theirs.Ignore
        if job.terminated:
            raise theirs.Ignore  # that it was revoked is told already
        return self._translate(task, told, value)

    def _finish(self, job: Job, told: dict[str, Any]) -> bool:
        assert self._claims is not None
        try:
            return self._claims.finish(job.run, told)
        except Exception as error:  # Celery cannot write it either, and will say so
            told.clear()
            told.update(self._describe(_failure(error), None))
            return self._claims.finish(job.run, told)

    def _run(
        self,
        job: Job | None,
        task: celery.Task,
        endpoint: endpoints.Endpoint,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """What came of the body: its value, or a `Failure`."""
        message = message_of(task, job)
        who = running.Request(
            message.id, message.retries + 1, message.retries + 1, message.root_id or "",
            self._host.identity,
        )  # fmt: skip
        args = [
            message_of(task, job) if isinstance(one, type(task.request)) else one for one in args
        ]
        over = threading.Event() if job is None or task.request.called_directly else job.over
        found: list[invocation.Outcome] = []

        def done(value: Any) -> None:
            if not isinstance(value, invocation.Outcome):
                started = None if job is None else job.started
                value = invocation.Outcome(value, started=started, ended=time.time())
            found.append(value)
            over.set()

        call: running.Call = (
            request.execute, (endpoint, message, args, kwargs, who, self._host.loop)
        )  # fmt: skip
        if job is not None:
            for onlooker in self._host.reports.onlookers:
                job.handed_on = {**job.handed_on, **onlooker.guest_began(job, self._system)}
            if running.sending is not None and self._host.loop is None:  # it goes into a child
                call = running.sending(job.key, call)
        limit = limits.UNLIMITED if job is None else job.limit
        ticket = self._host.pool.submit(*call, done, None, limit, message.task)
        if job is not None:
            job.ticket = ticket
            if job.terminated or job.given_up:  # meanwhile
                ticket.cancel(0)
        over.wait()
        over.clear()
        if not found:
            return _failure(theirs.WorkerLostError("the worker ended before the task did"))
        if job is not None:
            self._report(job, found[0])
        return found[0].value

    def _report(self, job: Job, outcome: invocation.Outcome) -> None:
        retried = outcome.failed and isinstance(outcome.value.exception, request.Retry)
        for onlooker in self._host.reports.onlookers:
            onlooker.guest_ended(job, outcome, not outcome.failed or retried)
        if outcome.failed or reporting.LOG.isEnabledFor(logging.INFO):
            self._host.reports.ended(job, outcome)

    # What Celery is to make of it.

    def _describe(self, value: Any, task: celery.Task | None) -> dict[str, Any]:
        """What came of a run, in a form that can be kept."""
        if not isinstance(value, ft.Failure):
            return {"kind": "value", "value": value}
        error = value.exception
        if isinstance(error, request.Retry):
            why = error.exc or (value.causes[0].exception if value.causes else None)
            delay = error.countdown
            if delay is None:
                delay = getattr(task, "default_retry_delay", 180) or 0
            return {
                "kind": "retry",
                "eta": error.eta if error.eta is not None else time.time() + delay,
                "most": error.max_retries,
                "args": error.new_args,
                "kwargs": error.new_kwargs,
                "failure": None if why is None else _failure(why).to_dict(),
            }
        if isinstance(error, request.Ignore) or value.check("celery.exceptions.Ignore"):
            return {"kind": "ignored"}
        if isinstance(error, request.Reject) or value.check("celery.exceptions.Reject"):
            requeue = bool(getattr(error, "requeue", False))
            return {"kind": "reject", "text": value.exception_str, "requeue": requeue}
        lost = value.check(exceptions.WorkerLost) is not None
        return {"kind": "lost" if lost else "failure", "failure": value.to_dict()}

    def _translate(self, task: celery.Task, told: Mapping[str, Any], value: Any) -> Any:
        """Return or raise it; `value` is what it was made of, where it ran here."""
        kind = told["kind"]
        if kind == "value":
            return told["value"]
        if kind == "ignored":
            raise theirs.Ignore
        if kind == "reject":
            raise theirs.Reject(told["text"], requeue=told["requeue"])
        found = told["failure"]
        failure = ft.Failure.from_dict(found) if found else None
        if kind == "retry":
            due = dt.datetime.fromtimestamp(told["eta"], dt.timezone.utc)
            why = None if failure is None else exception_of(failure)
            raise task.retry(told["args"], told["kwargs"], why, eta=due, max_retries=told["most"])
        if isinstance(value, ft.Failure):
            failure = value
        assert failure is not None
        job = CURRENT.get()
        raise exception_of(failure, None if job is None else job.limit.hard)


def message_of(task: celery.Task, job: Job | None) -> Any:
    """The message that a task runs for, as `current` tells it."""
    found = task.request
    told: dict[str, Any] = {name: getattr(found, name, None) for name in _TOLD}
    told = {name: value for name, value in told.items() if value is not None}
    told.setdefault("id", "" if job is None else job.id)
    if told.get("stamped_headers"):
        told["stamped_headers"] = tuple(told["stamped_headers"])
    extra = {} if job is None else job.headers
    return package.TaskMessage(task=task.name, extra=extra, **told)


def exception_of(failure: ft.Failure, hard: float | None = None) -> BaseException:
    """The exception that Celery's clients are to see."""
    for ours, alias in _ALIASES.items():
        if failure.check(ours):
            told: tuple[Any, ...] = (failure.exception_str,)
            if alias is theirs.TimeLimitExceeded and hard is not None:
                told = (hard,)
            return _from_where(failure, alias(*(() if "Soft" in alias.__name__ else told)))
    names = tuple(failure)
    if "Exception" not in names and names:
        text = f"Worker exited prematurely: {names[0]}: {failure.exception_str}"
        lost: Exception = theirs.WorkerLostError(text)
        return lost
    if failure.exception is not None:
        try:
            failure.reraise()
        except BaseException as error:
            _with_lines(error, failure)
            return error
    module, _, name = names[0].rpartition(".") if names else ("", "", "Exception")
    cls = getattr(sys.modules.get(module or "builtins"), name, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        cls = create_exception_cls(name, module or "builtins")
    try:
        made: Exception = cls(*(failure.exception_args or (failure.exception_str,)))
    except Exception:
        made = create_exception_cls(name, module or "builtins")(failure.exception_str)
    return made


def _with_lines(error: BaseException, failure: ft.Failure) -> None:
    """What was behind it says where it came from, too."""
    behind: BaseException | None = error
    for cause in failure.causes:
        behind = behind and (behind.__cause__ or behind.__context__)
        if behind is not None and cause.exc_info is not None:
            behind.__traceback__ = cause.exc_info[2]


def _from_where(failure: ft.Failure, error: BaseException) -> BaseException:
    """With the lines that the failure went through, where they are known."""
    told = failure.exc_info
    return error if told is None else error.with_traceback(told[2])


def _failure(error: BaseException) -> ft.Failure:
    return ft.Failure.from_exception(error)
