"""All uses of Celery that its guide does not document, each with its reason.

Three more are elsewhere: `embedded_worker` passes `ready_callback` in order to be notified when
Celery consumes, gives tasks a `__signature__`, and uses Celery's logger names.

`tests/celery/test_internals.py` checks these assumptions for the installed version.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

import celery
from billiard.einfo import ExceptionInfo
from celery.app import trace
from celery.concurrency import base
from celery.exceptions import InvalidTaskError
from celery.worker import request, state
from celery.worker.consumer import Consumer

from wbengine._concurrency import conditions, time_limits

__all__ = [
    "HostedConsumer", "HostedPool", "HostedRequest", "Loop", "PoolHost", "change_queues", "flush",
    "forget_requests", "is_busy", "prepare", "shut_down",
]  # fmt: skip

LOG = logging.getLogger("wbengine.celery")


def _number(value: Any, kind: type[int] | type[float] = float) -> float:
    """Convert a value to a number of this type, from 0 to 2**31 - 1.

    :raises TypeError, ValueError, OverflowError: if it cannot be converted.
    """
    number = kind(value)
    if not 0 <= number < 2**31:
        raise ValueError
    return number


def _count(value: Any) -> float:
    return _number(value, int)


def _pair(value: Any) -> list[float | None]:
    hard, soft = value
    return [None if limit is None else _number(limit) for limit in (hard, soft)]


#: Readers of headers. Invalid values of these headers would crash Celery or its pool.
_HEADERS: Final[Mapping[str, tuple[Callable[[Any], Any], str]]] = {
    "retries": (_count, "a number of at least 0"),
    "replaced_task_nesting": (_count, "a number of at least 0"),
    "timelimit": (_pair, "[hard, soft], each a number of at least 0 or null"),
}


class PoolHost(Protocol):
    """Runs the tasks that Celery submits to its pool: an `embedded_worker.CeleryWorker`."""

    def submit(self, delivery: HostedRequest) -> object:
        """Run a task. Celery calls `terminate` of the result if the running task is revoked."""

    def stop_jobs(self) -> None: ...


class HostedPool(base.BasePool):  # type: ignore[misc]
    """A pool that passes the tasks of Celery's worker to `host`, which a subclass defines.

    Celery's settings may name a pool, but the interface of pools is undocumented. Because of
    `uses_semaphore`, Celery submits at most as many jobs as there are slots, and checks before each
    submission whether the task was revoked or has expired.
    """

    uses_semaphore = True
    signal_safe = False
    host: ClassVar[PoolHost]

    def register_with_event_loop(self, hub: Any) -> None:
        """Create the `Loop`. Celery calls this in the loop's thread for each new connection."""
        HostedRequest.loop = Loop(hub, self.options["semaphore"])

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        # A pool receives the arguments of the tracer from `Request.execute_using_pool`. The
        # callbacks are methods of the request.
        hosted: HostedRequest = options["accept_callback"].__self__
        hosted.limit = time_limits.TimeLimit(soft_timeout or None, timeout or None)
        hosted.trace = functools.partial(target, *args, **(kwargs or {}))
        return self.host.submit(hosted)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing. Celery also calls `terminate` of the job that `on_apply` returned."""

    def on_stop(self) -> None:
        self.host.stop_jobs()

    on_terminate = on_stop


class HostedConsumer(Consumer):  # type: ignore[misc]
    """A consumer that rejects messages that Celery cannot process.

    For example, a message whose `task` is a list ends Celery's own worker. The setting
    `worker_consumer` for such a class is documented. The overridden method is not.
    """

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> None:
            try:
                handle(message)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                LOG.error("rejected a message that is not a Celery task: %.200r", error)
                if not message.acknowledged:
                    message.reject_log_error(LOG, self.connection_errors)

        return on_task_received


class HostedRequest(request.Request):  # type: ignore[misc]
    """A message that Celery's worker received and submits to its pool.

    `fields` contains the fields of the message, `limit` its time limits. `trace` runs the task.
    Call `accept` when the run begins, then either `end` with the result of `trace`, or `fail`.

    Documented: `Task.Request` for such a class, and `InvalidTaskError` for rejected messages.
    Undocumented: the attributes, and the effect of an error in the constructor.
    """

    loop: ClassVar[Loop]
    limit: time_limits.TimeLimit
    trace: Callable[[], Any]
    #: Deferred acknowledgments and rejections while a failure is stored. None: do not defer.
    _settlements: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None

    def __init__(self, message: Any, **options: Any) -> None:
        """Read the message.

        :raises InvalidTaskError: if one of the headers is invalid.
        """
        super().__init__(message, **options)
        headers = self.request_dict
        if not isinstance(self.id, str):
            raise InvalidTaskError(f"id must be a string, got {self.id!r:.200}")
        for name, (read, description) in _HEADERS.items():
            if (value := headers.get(name)) is not None:
                try:
                    headers[name] = read(value)
                except (TypeError, ValueError, OverflowError):
                    text = f"{name} must be {description}, got {value!r:.200}"
                    raise InvalidTaskError(text) from None
        self.time_limits = headers.get("timelimit") or (None, None)

    @property
    def fields(self) -> Mapping[str, Any]:
        fields: Mapping[str, Any] = self.request_dict
        return fields

    def acknowledge(self) -> None:
        """Acknowledge the message in the loop's thread.

        After a lost connection this may change the prefetch count, and only the loop may use the
        connection.
        """
        self._settle(super().acknowledge)

    def reject(self, requeue: bool = False) -> None:
        self._settle(super().reject, requeue)

    def _settle(self, settle: Callable[..., None], *args: Any) -> None:
        if self._settlements is None:
            self.loop.call(settle, *args)
        else:
            self._settlements.append((settle, args))

    def revoked(self) -> bool:
        """If the task was revoked or has expired, settle its message and return True.

        Celery calls this on receipt of the message and again when a slot is free. A redelivered
        message may belong to a running task, so the pool checks its claim first.
        """
        return not self.delivery_info["redelivered"] and self.settle_revoked()

    def settle_revoked(self) -> bool:
        """Do the same as `revoked` for any message. The caller owns the claim."""
        return bool(super().revoked())

    def accept(self) -> None:
        self.on_accepted(os.getpid(), time.monotonic())

    def end(self, result: Any) -> None:
        self.on_success(result)

    def fail(self, error: BaseException) -> None:
        """Let Celery settle the message according to an error.

        Celery documents `Reject`, `Ignore` and `WorkerLostError` only for errors that tasks raise.
        Pools report them as billiard's record of an exception.

        Celery acknowledges the message of a lost worker before it stores the failure. If the
        process dies in between, a client waits forever. So the message is settled last here, and
        stays unsettled if the failure cannot be stored.
        """
        settlements: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._settlements = settlements
        try:
            raise error
        except type(error):
            self.on_failure(ExceptionInfo())
        finally:
            self._settlements = None
        for settle, args in settlements:
            self.loop.call(settle, *args)


class Loop:
    """The loop of Celery's worker and its semaphore of slots. Create it in the loop's thread.

    The loop acquires a slot before it submits a job.
    """

    def __init__(self, hub: Any, semaphore: Any) -> None:
        self._hub = hub
        self._semaphore = semaphore
        self._thread = threading.get_ident()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the loop's thread, or immediately if this is that thread."""
        if threading.get_ident() == self._thread:
            function(*args)
        else:
            self._hub.call_soon(function, *args)

    def release_slot(self) -> None:
        self.call(self._semaphore.release)

    def take_slot_later(self, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        """Acquire a slot after this number of seconds, then call the function."""
        take = self._semaphore.acquire
        self.call(self._hub.call_later, seconds, take, function, *args)


def prepare(app: celery.Celery, node: str) -> None:
    """Make `app` the app of all threads, and `node` the host name that its tasks receive.

    `celery worker` does the same, but also replaces the signal handlers and the logging.
    """
    trace.setup_worker_optimizations(app, node)
    state.should_stop = state.should_terminate = None


def shut_down() -> None:
    """Make the worker of this process end.

    The control command `shutdown` would not arrive while the broker is unavailable.
    """
    state.should_stop = 0


def forget_requests() -> None:
    """Forget the messages of a worker that has ended. Celery keeps them in global variables."""
    for requests in (
        state.requests,
        state.reserved_requests,
        state.active_requests,
        state.scheduled_requests,
    ):
        requests.clear()


def is_busy() -> bool:
    """Return True if the worker of this process has unsettled messages."""
    return bool(state.requests)


def change_queues(worker: Any, queues: Iterable[str], consume: bool) -> None:
    """Start (or stop) consuming these queues.

    The consumer's methods are documented. Undocumented: they must be called in its loop.
    """
    consumer = worker.consumer
    change = consumer.add_task_queue if consume else consumer.cancel_task_queue
    for queue in queues:
        consumer.call_soon(change, queue)


def flush(worker: Any, timeout: float) -> None:
    """Wait until the worker has acknowledged its ended tasks. Its loop runs calls in any order."""
    for _ in range(2):
        done = conditions.Event()
        worker.consumer.call_soon(done.set)
        done.wait(timeout)
