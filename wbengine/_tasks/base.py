"""The base class of all tasks."""

from __future__ import annotations

import copy
import datetime as dt
import logging
import numbers
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final, TypeVar, cast

from wbengine import _names, atom, invocation, running
from wbengine.backoff import Backoff, Errors
from wbengine.types import notifier as nt

LOG = logging.getLogger("wbengine.task")

#: The event of `Task.update_progress`. Details: `{'progress': 0.0 to 1.0}`.
EVENT_UPDATE_PROGRESS: Final = "update_progress"

_T = TypeVar("_T", bound="Task")

_COPYING: Final = (
    "__copy__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getstate__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__setstate__",
)


class Task(atom.Atom):
    """An atom that may run anywhere: in the thread of the engine, in a pool, on a worker.

    The parameters are those of `Atom`. The default name is the full name of the class, so a flow
    can contain only one unnamed task of a class.
    """

    # The public name, which workers and pickles use.
    __module__ = "wbengine.task"

    #: The events of `notifier`. A subclass adds its own events.
    # A tuple, because subclasses of TaskFlow contain `TASK_EVENTS = Task.TASK_EVENTS + ('mine',)`.
    TASK_EVENTS: ClassVar[Collection[str]] = (EVENT_UPDATE_PROGRESS,)

    #: True: the task may run twice, so it runs again if its result is unknown, because its worker
    #: was lost or its flow is resumed. False: it then fails as `WorkerLost`. None: the engine's
    #: option `on_worker_lost` decides.
    idempotent: bool | None = None
    #: Time limits of one execution or revert in seconds: `(soft, hard)`; each may be None. After
    #: the soft limit, `SoftTimeLimitExceeded` is raised in the task; after the hard limit it is
    #: stopped. None: the engine's option `timelimit` decides.
    timelimit: tuple[float | None, float | None] | None = None
    #: Seconds after the task is ready (or an aware datetime) after which it is not started; it then
    #: fails as `Expired`.
    expires: float | dt.datetime | None = None
    #: Seconds after the task is ready (or an aware datetime) before which it is not started.
    eta: float | dt.datetime | None = None
    #: Maximum number of starts per second, minute, hour or day ('10/s', '100/m', '1000/h',
    #: '5000/d'), and maximum number of concurrent executions, in all engines together. See "Limit
    #: calls to an API".
    rate_limit: str | None = None
    concurrency: int | None = None
    #: A function of arguments of the task. Both limits apply separately to each value that it
    #: returns.
    concurrency_key: Callable[..., Any] | None = None
    #: Name of the limit, which tasks may share. Default: the name of the function or class.
    limit: str | None = None
    #: True: the task must run in the process of the engine.
    local: bool = False
    #: True: a running execution is cancelled when its scope (the flow, or the flow of a retry
    #: controller) is reverted. False: the revert waits for its end.
    cancel_on_revert: bool = False
    #: Maximum number of additional executions after failures. They are controlled by a retry
    #: controller of the task, `<name>_retry`, before controllers around it are asked. `backoff` and
    #: `retry_on` are those of `retry.Times`: the wait before each further execution, and the
    #: exceptions that are retried.
    retries: int = 0
    backoff: Backoff | float | None = None
    retry_on: Errors | None = None
    #: True: the work of the task continues outside if the process of the engine dies. A resumed
    #: flow then continues the unfinished execution: `request` has the same id and is `recovered`.
    #: An interrupted run (Ctrl-C) cancels an `async` execution, and `request.left` is True: its
    #: work has to be left alone.
    detached: bool = False
    #: True: the engine runs the task item by item. (See `Map`; `isinstance` would be slower.)
    fans_out: ClassVar[bool] = False

    # Cached for each class.
    _plain: ClassVar[bool]

    # Created on first use: most tasks have no listener.
    _listeners: nt.RelayingNotifier | None = None
    # The latest running call of the task, for threads that it starts, which have another context.
    # Only one such attribute: attributes set after the constructor give each instance its own
    # dictionary of 600 bytes.
    _latest: invocation.Invocation | None = None

    def _default_name(self) -> str:
        return _names.class_name(type(self))

    @property
    def notifier(self) -> nt.RestrictedNotifier:
        """The notifier for events of the running task."""
        notifier = self._listeners
        if notifier is None:
            new_notifier = nt.RelayingNotifier(self.TASK_EVENTS)
            # Atomic: two threads that get here at the same time receive the same notifier.
            notifier = cast(
                nt.RelayingNotifier, self.__dict__.setdefault("_listeners", new_notifier)
            )
            notifier.sink = None if (call := self._latest) is None else call.events
        return notifier

    #: The attribute that subclasses written for TaskFlow use.
    _notifier = notifier

    def attach(self, call: invocation.Invocation) -> None:
        """Send further events of the task to `call.events`, after listeners."""
        self._latest = call
        if self._listeners is not None:
            self._listeners.sink = call.events

    def detach(self) -> None:
        """Undo `attach`. Idempotent."""
        self._latest = None
        if self._listeners is not None:
            self._listeners.sink = None

    @property
    def cancelled(self) -> bool:
        """True if the running execution or revert was cancelled and should return soon.

        A long `execute` or `revert` should read this from time to time, in any of its threads. It
        works wherever the task runs and costs little. False if the task is not running.
        """
        call = running.current(self) or self._latest
        return call is not None and call.cancellation.cancelled

    @property
    def request(self) -> running.Request | None:
        """Public data of the running call; None if the task is not running.

        Available in `execute`, `revert` and functions that they call; pass it to threads that they
        start. `request.id` is the same on all engines for the same execution.
        """
        call = running.current(self)
        if call is None:
            return None
        deadline = call.cancellation.deadline
        if call.origin is not None:
            return call.origin._replace(deadline=deadline)
        name = invocation.request_id(call.uuid, call.action, call.attempt, call.index, call.resumed)
        return running.Request(
            name,
            call.attempt,
            call.epoch,
            call.flow_uuid,
            invocation.LOCAL,
            deadline,
            call.recovered,
            call.cancellation.left and self.detached and call.action == invocation.EXECUTE,
        )

    def update_progress(self, progress: float) -> None:
        """Report the progress of the task. Values outside 0.0 to 1.0 are clamped, with a warning.

        :raises TypeError: if it is not a number.
        """
        if not isinstance(progress, int | float):
            if not isinstance(progress, numbers.Real):
                raise TypeError(f"The progress of {self.name!r} must be a number, got {progress!r}")
            progress = float(progress)
        clamped = progress if 0.0 <= progress <= 1.0 else (1.0 if progress > 1.0 else 0.0)
        if clamped != progress:
            LOG.warning("The progress of %s must be from 0.0 to 1.0, got %r", self.name, progress)
        if self._listeners is not None:
            self._listeners.notify(EVENT_UPDATE_PROGRESS, {"progress": clamped})
        elif (call := self._latest) is not None and call.events is not None:
            nt.relay(call.events, EVENT_UPDATE_PROGRESS, {"progress": clamped})

    def copy(self: _T, retain_listeners: bool = True) -> _T:
        """Return a shallow copy, with or without the listeners of the original."""
        if _copies_plainly(type(self)):
            # Equivalent to `copy.copy`, but five times as fast: a Map creates a copy for each item.
            duplicate = type(self).__new__(type(self))
            vars(duplicate).update(self.__getstate__())
        else:
            duplicate = copy.copy(self)
        if retain_listeners and self._listeners is not None:
            duplicate._listeners = cast(nt.RelayingNotifier, self._listeners.copy())
            duplicate._listeners.sink = None
        return duplicate

    def __getstate__(self) -> dict[str, Any]:
        # Listeners and the call belong to this process.
        state = self.__dict__.copy()
        state.pop("_listeners", None)
        state.pop("_latest", None)
        return state


def _copies_plainly(cls: type[Task]) -> bool:
    is_plain: bool | None = vars(cls).get("_plain")  # not inherited from a base class
    if is_plain is None:
        is_plain = all(getattr(cls, name, None) is getattr(Task, name, None) for name in _COPYING)
        cls._plain = is_plain
    return is_plain
