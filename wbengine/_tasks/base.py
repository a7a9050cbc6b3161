"""The base of all tasks."""

from __future__ import annotations

import copy
import datetime as dt
import logging
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final, TypeVar, cast

from wbengine import _names, atom, invocation, running
from wbengine.backoff import Backoff, Errors
from wbengine.types import notifier as nt

LOG = logging.getLogger("wbengine.task")

#: The event behind `Task.update_progress`; its details are `{'progress': 0.0 to 1.0}`.
EVENT_UPDATE_PROGRESS: Final = "update_progress"

_T = TypeVar("_T", bound="Task")

#: Where a class may say how its instances are copied.
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
    """An atom that may run anywhere: in this thread, in a pool, on a worker.

    The parameters are those of `Atom`; the default name is the full name of the class, so two
    unnamed tasks of one class cannot be in the same flow.
    """

    # Users, workers and pickles know it by this name.
    __module__ = "wbengine.task"

    #: The events that `notifier` knows; a subclass extends it to tell its own.
    # A tuple: subclasses of TaskFlow's say `TASK_EVENTS = Task.TASK_EVENTS + ('mine',)`.
    TASK_EVENTS: ClassVar[Collection[str]] = (EVENT_UPDATE_PROGRESS,)

    #: Does it do no harm to run it twice?  Then what nobody can tell of, because its worker was
    #: lost or its flow is resumed, is run again; else it fails as `WorkerLost`.  None: as the
    #: engine's option `on_worker_lost` says.
    idempotent: bool | None = None
    #: Seconds that one execution or reversion may take: `(soft, hard)`, each perhaps None.  After
    #: the first `SoftTimeLimitExceeded` is raised in it, after the second it is ended.  None: as
    #: the engine's option `timelimit` says.
    timelimit: tuple[float | None, float | None] | None = None
    #: Seconds after it is ready (or, an aware datetime, the moment) from which on it is not started
    #: any more, but fails as `Expired`.
    expires: float | dt.datetime | None = None
    #: Seconds after it is ready (or, an aware datetime, the moment) before which it is not started.
    eta: float | dt.datetime | None = None
    #: How many may be begun per second, minute, hour or day ('10/s', '100/m', '1000/h', '5000/d'),
    #: and how many may be under way at once, by all engines together.  See "Limits" in the guide.
    rate_limit: str | None = None
    concurrency: int | None = None
    #: A function of arguments of the task: both are for those alike for which it returns the same.
    concurrency_key: Callable[..., Any] | None = None
    #: What is limited together has one name here: by default it is the function or class.
    limit: str | None = None
    #: Must it run in the engine's own process?
    local: bool = False
    #: Is an execution that is under way cancelled when what it is part of is to be undone, its flow
    #: or the subflow of a retry?  Else undoing waits for it to end by itself.
    cancel_on_revert: bool = False
    #: How often it is tried again when it fails, before a retry around it is asked: a retry of its
    #: own, `<name>_retry`, answers for it.  `backoff` and `retry_on` are as for `retry.Times`: the
    #: wait before each further attempt, and which exceptions are worth one.
    retries: int = 0
    backoff: Backoff | float | None = None
    retry_on: Errors | None = None
    #: Does what it does go on outside when the engine's process dies?  Then a resumed flow goes on
    #: with the execution that was left unfinished: `request` has the same id, and says `recovered`.
    #: An interrupted run (Ctrl-C) does not wait for an `async` one: that is cancelled, and
    #: `request.left` says that what it began is to be left alone.
    detached: bool = False
    #: Does the engine run it item by item?  (See `Map`; asking for the class would take longer.)
    fans_out: ClassVar[bool] = False

    # Whether copying attributes copies an instance of the class; kept in it, and goes when it goes.
    _plain: ClassVar[bool]

    # Made on first use: most tasks have no listener.
    _listeners: nt.RelayingNotifier | None = None
    # The latest call of it that runs, for the threads that it starts: their context is another one.
    # One attribute, not more: a few that are set later than in the constructor give each instance a
    # dictionary of its own, of 600 bytes.
    _latest: invocation.Invocation | None = None

    def _default_name(self) -> str:
        return _names.class_name(type(self))

    @property
    def notifier(self) -> nt.RestrictedNotifier:
        """Where to listen to what the task tells while it runs."""
        found = self._listeners
        if found is None:
            made = nt.RelayingNotifier(self.TASK_EVENTS)
            # Two threads may come here at once: both must get the same one.
            found = cast(nt.RelayingNotifier, self.__dict__.setdefault("_listeners", made))
            found.sink = None if (call := self._latest) is None else call.events
        return found

    #: The name under which subclasses that were written for TaskFlow know it.
    _notifier = notifier

    def attach(self, call: invocation.Invocation) -> None:
        """`call` runs the task: its `events` are told of every event as well, after listeners."""
        self._latest = call
        if self._listeners is not None:
            self._listeners.sink = call.events

    def detach(self) -> None:
        """Nothing runs the task any more; idempotent."""
        self._latest = None
        if self._listeners is not None:
            self._listeners.sink = None

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled what runs of this task: it should clean up, and end soon.

        To be asked now and then by an `execute` or `revert` that takes long, from any of its
        threads; it works wherever the task runs, and costs next to nothing.  False outside.
        """
        call = running.current(self) or self._latest
        return call is not None and call.cancellation.cancelled

    @property
    def request(self) -> running.Request | None:
        """What runs of this task, as it is known outside; None where nothing does.

        For `execute`, `revert` and what they call; a thread that they start is to be given it.
        `request.id` is the same for whatever is the same run, on every engine.
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
        """Tell how far the task is, from 0.0 to 1.0; what is outside is clamped, with a warning.

        :raises TypeError: not a number.
        """
        if not isinstance(progress, int | float):
            raise TypeError(f"The progress of {self.name!r} must be a number, not {progress!r}")
        clamped = progress if 0.0 <= progress <= 1.0 else (1.0 if progress > 1.0 else 0.0)
        if clamped != progress:
            LOG.warning("Progress of %s must be from 0.0 to 1.0, not %r", self.name, progress)
        if self._listeners is not None:
            self._listeners.notify(EVENT_UPDATE_PROGRESS, {"progress": clamped})
        elif (call := self._latest) is not None and call.events is not None:
            nt.relay(call.events, EVENT_UPDATE_PROGRESS, {"progress": clamped})

    def copy(self: _T, retain_listeners: bool = True) -> _T:
        """A shallow copy, with or without the listeners of the original."""
        if _copies_plainly(type(self)):
            # What `copy.copy` does, five times as fast: a Map makes one for each item.
            other = type(self).__new__(type(self))
            vars(other).update(self.__getstate__())
        else:
            other = copy.copy(self)
        if retain_listeners and self._listeners is not None:
            other._listeners = cast(nt.RelayingNotifier, self._listeners.copy())
            other._listeners.sink = None
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Listeners and the call belong to the process that has them.
        state = self.__dict__.copy()
        state.pop("_listeners", None)
        state.pop("_latest", None)
        return state


def _copies_plainly(cls: type[Task]) -> bool:
    """Whether to copy an instance of a class is to copy its attributes."""
    found: bool | None = vars(cls).get("_plain")  # not that of a base class
    if found is None:
        found = all(getattr(cls, name, None) is getattr(Task, name, None) for name in _COPYING)
        cls._plain = found
    return found
