"""What is used of Celery that its guide does not describe, each with its reason.

Elsewhere there are three names of the kind: `worker` is told by `ready_callback` when it consumes,
gives its tasks a `__signature__`, and knows Celery's loggers by their names.

The extra `celery` in `setup.cfg` names the versions of which this is true, and
`tests/celery/test_internals.py` shows that it is true of the installed one.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import celery
from billiard.einfo import ExceptionInfo
from celery.app import trace
from celery.concurrency import base
from celery.exceptions import InvalidTaskError
from celery.worker import request, state
from celery.worker.consumer import Consumer

from wbengine.concurrency import limits

__all__ = [
    "Delivery", "HostedConsumer", "HostedPool", "HostedRequest", "Runner", "Slots", "change_queues",
    "flush", "is_busy", "prepare", "settle", "shut_down",
]  # fmt: skip

LOG = logging.getLogger("wbengine.celery")

#: Numbers in headers are below that.
_MOST: Final = 2**31


class Delivery(NamedTuple):
    """A task that Celery gives its pool to run; `request` has all fields of its message, `body` its
    arguments as they came, or as they were read (version 1).

    `trace` runs it.  `accept` is to be called when it begins, `ended` with what `trace` returns;
    and `settle` calls `failed`.  `revoked` says whether it was revoked, or is too late, and settles
    it then: it is to be asked once the run is claimed.
    """

    name: str
    id: str
    request: Mapping[str, Any]
    body: Any
    limit: limits.TimeLimit
    trace: Callable[[], Any]
    accept: Callable[[int, float], Any]
    ended: Callable[[Any], Any]
    failed: Callable[[Any], Any]
    revoked: Callable[[], bool]


class Runner(Protocol):
    """Does the work of a pool."""

    #: Those of the worker, since it has a connection.
    slots: Slots

    def start(self, app: celery.Celery, slots: int) -> None:
        """Get ready for as many tasks at once."""

    def submit(self, delivery: Delivery) -> Any:
        """Run a task.  What is returned has a method `terminate`, which is called when the task is
        revoked as it runs."""

    def stop(self) -> None:
        """Wait for the tasks that run."""


class HostedPool(base.BasePool):  # type: ignore[misc]
    """Where Celery's worker runs tasks: a subclass knows the `runner` that does the work.

    Pools may be named in the settings, but what one is asked to do is not described.  With
    `uses_semaphore` Celery hands out as many jobs as there are slots, and looks whether each was
    revoked, or is too late, just before.
    """

    uses_semaphore = True
    signal_safe = False
    runner: ClassVar[Runner]

    def on_start(self) -> None:
        self.runner.start(self.app, self.limit)

    def register_with_event_loop(self, hub: Any) -> None:
        """Each time that the worker has a connection, in the thread of its loop."""
        self.runner.slots = Slots(hub, self.options["semaphore"])
        HostedRequest.call_in_loop = Loop(hub)

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
        name, id, request, body = args[:4]
        delivery = Delivery(
            name,
            id,
            request,
            body,
            limits.TimeLimit(soft_timeout or None, timeout or None),
            functools.partial(target, *args, **(kwargs or {})),
            options["accept_callback"],
            options["callback"],
            options["error_callback"],
            options["accept_callback"].__self__.settle_revoked,  # of the `HostedRequest`
        )
        return self.runner.submit(delivery)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """The job itself is told, as what `on_apply` returned."""

    def on_stop(self) -> None:
        self.runner.stop()

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
    """A message that Celery's worker received.

    `Task.Request` is described as the place for such a class, `InvalidTaskError` as what is raised
    of a message that is to be logged and rejected; that its constructor may raise it is not, nor
    are `request_dict`, `delivery_info`, `revoked`, `acknowledge` and `reject`.
    """

    call_in_loop: ClassVar[Loop]

    def __init__(self, message: Any, **options: Any) -> None:
        """
        :raises InvalidTaskError: one of its headers is not what it must be.
        """
        super().__init__(message, **options)
        told = self.request_dict
        if not isinstance(self.id, str):
            raise InvalidTaskError(f"id must be a string, not {self.id!r:.200}")
        for name in ("retries", "replaced_task_nesting"):
            if told.get(name) is not None:
                told[name] = _number(name, told[name], int)
        if pair := told.get("timelimit"):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise InvalidTaskError(f"timelimit must be [hard, soft], not {pair!r:.200}")
            self.time_limits = told["timelimit"] = [
                None if one is None else _number("timelimit", one, float) for one in pair
            ]

    def acknowledge(self) -> None:
        """Acknowledge the message.

        That may change the prefetch count as well, when the connection was lost before: Celery's
        pools do it in the loop, which alone may use the connection.
        """
        self.call_in_loop(super().acknowledge)

    def reject(self, requeue: bool = False) -> None:
        self.call_in_loop(super().reject, requeue)

    def revoked(self) -> bool:
        """Whether it was revoked, or is too late, and is settled.

        Celery asks when it receives a message, and when a slot is free.  A copy that was delivered
        before may be of a task that runs: who has claimed it is asked first, in the pool.
        """
        return not self.delivery_info["redelivered"] and self.settle_revoked()

    def settle_revoked(self) -> bool:
        """The same, for who has claimed its run."""
        return bool(super().revoked())


def _number(name: str, value: Any, kind: type[int] | type[float]) -> float:
    """
    :raises InvalidTaskError: the value of a header is no such number.
    """
    try:
        number = kind(value)
        if 0 <= number < _MOST:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidTaskError(f"{name} must be a number from 0, not {value!r:.200}")


class Loop:
    """The loop of Celery's worker, in whose thread this is made."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._thread = threading.get_ident()

    def __call__(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in its thread: at once if that is this one."""
        if threading.get_ident() == self._thread:
            function(*args)
        else:
            self._hub.call_soon(function, *args)


class Slots:
    """The semaphore that Celery takes a slot from before it hands out a job, in its loop."""

    def __init__(self, hub: Any, semaphore: Any) -> None:
        self._hub = hub
        self._semaphore = semaphore

    def release(self) -> None:
        """Give a slot back."""
        self._hub.call_soon(self._semaphore.release)

    def take_later(self, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        """Take a slot again after so many seconds, and call a function then."""
        take = self._semaphore.acquire
        self._hub.call_soon(self._hub.call_later, seconds, take, function, *args)


def settle(failed: Callable[..., Any], error: BaseException) -> None:
    """Let Celery settle a job by its callback, as its error says.

    What it makes of `Reject`, `Ignore` and `WorkerLostError` is described only where tasks raise
    them; pools report them with billiard's record of an exception.
    """
    try:
        raise error
    except type(error):
        failed(ExceptionInfo())


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
