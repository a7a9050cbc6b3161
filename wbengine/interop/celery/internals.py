"""What is used of Celery that its guide does not describe, each with its reason.

Elsewhere there are three names of the kind: `worker` is told by `ready_callback` when it consumes,
gives its tasks a `__signature__`, and knows Celery's loggers by their names.

The extra `celery` in `setup.cfg` names the versions of which this is true, and
`tests/celery/test_internals.py` shows that it is true of the installed one.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import celery
from billiard.einfo import ExceptionInfo
from celery.app import trace
from celery.concurrency import base
from celery.exceptions import InvalidTaskError
from celery.worker import request, state
from celery.worker.consumer import Consumer

from wbengine.concurrency import limits

if TYPE_CHECKING:
    from wbengine.interop.celery.worker import CeleryWorker

__all__ = [
    "HostedConsumer", "HostedPool", "HostedRequest", "Loop", "change_queues", "flush", "is_busy",
    "prepare", "shut_down",
]  # fmt: skip

LOG = logging.getLogger("wbengine.celery")


def _number(value: Any, kind: type[int] | type[float] = float) -> float:
    """
    :raises TypeError, ValueError, OverflowError: it is no number of this kind from 0.
    """
    number = kind(value)
    if not 0 <= number < 2**31:
        raise ValueError
    return number


def _count(value: Any) -> float:
    return _number(value, int)


def _pair(value: Any) -> list[float | None]:
    hard, soft = value
    return [None if one is None else _number(one) for one in (hard, soft)]


#: What headers must be: Celery, or a pool, ends with an error where they are not.
_HEADERS: Final[Mapping[str, tuple[Callable[[Any], Any], str]]] = {
    "retries": (_count, "a number from 0"),
    "replaced_task_nesting": (_count, "a number from 0"),
    "timelimit": (_pair, "[hard, soft], each a number from 0 or null"),
}


class HostedPool(base.BasePool):  # type: ignore[misc]
    """Where Celery's worker runs tasks: a subclass knows the `host` that does the work.

    Pools may be named in the settings, but what one is asked to do is not described.  With
    `uses_semaphore` Celery hands out as many jobs as there are slots, and looks whether each was
    revoked, or is too late, just before.
    """

    uses_semaphore = True
    signal_safe = False
    host: ClassVar[CeleryWorker]

    def register_with_event_loop(self, hub: Any) -> None:
        """Each time that the worker has a connection, in the thread of its loop."""
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
        # What `Request.execute_using_pool` gives its tracer is all that a pool learns of a task.
        # Its callbacks are methods of the request.
        made: HostedRequest = options["accept_callback"].__self__
        made.limit = limits.TimeLimit(soft_timeout or None, timeout or None)
        made.trace = functools.partial(target, *args, **(kwargs or {}))
        return self.host.submit(made)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """The job itself is told, as what `on_apply` returned."""

    def on_stop(self) -> None:
        self.host.stop_jobs()

    on_terminate = on_stop


class HostedConsumer(Consumer):  # type: ignore[misc]
    """Rejects a message of which Celery can make nothing, as one whose `task` is a list: Celery's
    own worker ends with the error.

    The setting `worker_consumer` is described as the place for such a class, what it overrides is
    not.
    """

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> None:
            try:
                handle(message)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                LOG.error("a message is no task of Celery's, and is rejected: %.200r", error)
                if not message.acknowledged:
                    message.reject_log_error(LOG, self.connection_errors)

        return on_task_received


class HostedRequest(request.Request):  # type: ignore[misc]
    """A message that Celery's worker received, and gives its pool to run.

    `fields` has those of its message, `limit` its limits, `trace` runs it.  `accept` is to be
    called when it begins, and `end` with what `trace` returns, or `fail`.

    `Task.Request` is described as the place for such a class, `InvalidTaskError` as what is raised
    of a message that is to be logged and rejected; that its constructor may raise it is not, nor
    are its attributes.
    """

    loop: ClassVar[Loop]
    limit: limits.TimeLimit
    trace: Callable[[], Any]
    #: How the message is to be settled, while what became of it is stored; None: at once.
    _settlements: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None

    def __init__(self, message: Any, **options: Any) -> None:
        """
        :raises InvalidTaskError: one of its headers is not what it must be.
        """
        super().__init__(message, **options)
        told = self.request_dict
        if not isinstance(self.id, str):
            raise InvalidTaskError(f"id must be a string, not {self.id!r:.200}")
        for name, (read, words) in _HEADERS.items():
            if (value := told.get(name)) is not None:
                try:
                    told[name] = read(value)
                except (TypeError, ValueError, OverflowError):
                    text = f"{name} must be {words}, not {value!r:.200}"
                    raise InvalidTaskError(text) from None
        self.time_limits = told.get("timelimit") or (None, None)

    @property
    def fields(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.request_dict
        return found

    def acknowledge(self) -> None:
        """Acknowledge the message.

        That may change the prefetch count as well, when the connection was lost before: Celery's
        pools do it in the loop, which alone may use the connection.
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
        """Whether it was revoked, or is too late, and is settled.

        Celery asks when it receives a message, and when a slot is free.  A copy that was delivered
        before may be of a task that runs: who has claimed it is asked first, in the pool.
        """
        return not self.delivery_info["redelivered"] and self.settle_revoked()

    def settle_revoked(self) -> bool:
        """The same, for who has claimed its run."""
        return bool(super().revoked())

    def accept(self) -> None:
        self.on_accepted(os.getpid(), time.monotonic())

    def end(self, told: Any) -> None:
        self.on_success(told)

    def fail(self, error: BaseException) -> None:
        """Have Celery settle it as an error says.

        What it makes of `Reject`, `Ignore` and `WorkerLostError` is described only where tasks
        raise them; pools report them with billiard's record of an exception.

        Celery acknowledges the message of a lost worker before it stores the failure: a kill in
        between would leave a client waiting for ever.  Here the message is settled last, and stays
        unsettled if the failure cannot be stored.
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
    """The loop of Celery's worker, in whose thread this is made, and the semaphore that it takes a
    slot from before it hands out a job."""

    def __init__(self, hub: Any, semaphore: Any) -> None:
        self._hub = hub
        self._semaphore = semaphore
        self._thread = threading.get_ident()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in its thread: at once if that is this one."""
        if threading.get_ident() == self._thread:
            function(*args)
        else:
            self._hub.call_soon(function, *args)

    def release_slot(self) -> None:
        """Give a slot back."""
        self.call(self._semaphore.release)

    def take_slot_later(self, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        """Take a slot again after so many seconds, and call a function then."""
        take = self._semaphore.acquire
        self.call(self._hub.call_later, seconds, take, function, *args)


def prepare(app: celery.Celery, node: str) -> None:
    """Make this the app of all threads, and `node` the name that its tasks know.

    `celery worker` does it; beside that it takes over the signals and the log of the process.
    """
    trace.setup_worker_optimizations(app, node)
    state.should_stop = state.should_terminate = None


def shut_down() -> None:
    """Have the worker of this process end.

    The control command `shutdown` does the same, but does not come through while the broker is
    away.
    """
    state.should_stop = 0


def is_busy() -> bool:
    """Whether the worker of this process has taken messages that it has not settled."""
    return bool(state.requests)


def change_queues(worker: Any, queues: Iterable[str], wanted: bool) -> None:
    """Take messages of these queues, or do not any more.

    What the consumer has for it is described, that its loop is the place to call it is not.
    """
    consumer = worker.consumer
    change = consumer.add_task_queue if wanted else consumer.cancel_task_queue
    for queue in queues:
        consumer.call_soon(change, queue)


def flush(worker: Any, timeout: float) -> None:
    """Let the worker acknowledge what has ended: it does so in its loop, not in order."""
    for _ in range(2):
        done = threading.Event()
        worker.consumer.call_soon(done.set)
        done.wait(timeout)
