"""The base class of all tasks."""

from __future__ import annotations

import copy
import datetime as dt
import logging
import numbers
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, Unpack, cast

from wbengine import atom, running
from wbengine._calls import invocation
from wbengine._introspection import binding, object_names
from wbengine.backoff import Backoff, Errors
from wbengine.types import notifier as nt

if TYPE_CHECKING:
    from wbengine._tasks import call_options

LOG = logging.getLogger("wbengine.task")

#: The event of `Task.update_progress`. Details: `{'progress': 0.0 to 1.0}`.
EVENT_UPDATE_PROGRESS: Final = "update_progress"

#: The argument for the transaction of a task.
CONNECTION: Final = invocation.CONNECTION

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

    __module__ = "wbengine.task"

    #: The events of `notifier`. A subclass adds its own events.
    # A tuple, because TaskFlow subclasses contain `TASK_EVENTS = Task.TASK_EVENTS + ('mine',)`.
    TASK_EVENTS: ClassVar[Collection[str]] = (EVENT_UPDATE_PROGRESS,)

    #: Whether the task may run twice. If its worker was lost or its flow is resumed, an unfinished
    #: execution then runs again; with False it fails as `WorkerLost`. None: the engine's option
    #: `on_worker_lost` decides.
    idempotent: bool | None = None
    #: Time limits of one execution or revert: `(soft, hard)` in seconds or None. After the soft
    #: limit, `SoftTimeLimitExceeded` is raised in the task; after the hard limit it is stopped.
    #: None: the engine's option `timelimit` applies.
    timelimit: tuple[float | None, float | None] | None = None
    #: Seconds after the task is ready (or an aware datetime) after which it fails as `Expired`
    #: instead of starting.
    expires: float | dt.datetime | None = None
    #: Seconds after the task is ready (or an aware datetime) before which it does not start.
    eta: float | dt.datetime | None = None
    #: Maximum number of starts per second, minute, hour or day ('10/s', '100/m', '1000/h',
    #: '5000/d'), and maximum number of concurrent executions, in all engines together.
    rate_limit: str | None = None
    concurrency: int | None = None
    #: A function of arguments of the task. Both limits apply separately to each value that the
    #: function returns.
    concurrency_key: Callable[..., Any] | None = None
    #: Name of the limit. Tasks with the same name share it. Default: name of the function or class.
    limit: str | None = None
    #: Units of `rate_limit` that an execution takes: a number, or a function of arguments of the
    #: task. `request.spend` corrects it. None: one.
    cost: Callable[..., Any] | float | None = None
    #: Whether the task must run in the process of the engine.
    local: bool = False
    #: Whether a revert of the flow, or of a retry controller's scope, cancels a running execution.
    #: Otherwise the revert waits for its end.
    cancel_on_revert: bool = False
    #: Whether nothing can undo the effect of the task. A complete flow with such a task is only
    #: reverted with `partial=True`.
    irreversible: bool = False
    #: Maximum number of further executions after failures, before retry controllers of the flow
    #: are asked. `backoff` and `retry_on` are those of `retry.Times`: the wait before each further
    #: execution, and the exceptions that are retried. After `retry_for` (seconds, or text such as
    #: '2d') since the first start, no execution starts; with it, `retries` may be None: any number.
    retries: int | None = 0
    backoff: Backoff | float | None = None
    retry_on: Errors | None = None
    retry_for: float | str | None = None
    #: Whether the work of the task continues outside if the process of the engine dies. A resumed
    #: flow then continues the unfinished execution: its `request` has the same id and is
    #: `recovered`. Ctrl-C cancels an `async` execution; `request.left` is then True, and its
    #: outside work must continue.
    detached: bool = False
    #: Name of a database (`wbengine.databases`). `execute` and `revert` receive an open transaction
    #: of it as their argument `connection`. It takes effect exactly once, together with a row that
    #: contains the result.
    transaction: str | None = None
    #: Whether the engine runs the task item by item, as a `Map`. (`isinstance` would be slower.)
    fans_out: ClassVar[bool] = False
    #: Whether the engine runs the task as a function of steps, as a workflow.
    runs_steps: ClassVar[bool] = False
    #: Whether the engine waits instead of running the task, as for `WaitFor`.
    is_wait: ClassVar[bool] = False

    # Cached for each class by `_copies_plainly`.
    _plain: ClassVar[bool]

    # Created on first use, because most tasks have no listener.
    _listeners: nt.RelayingNotifier | None = None
    # The latest running call of the task, for threads that it starts: their context does not
    # contain the call. The only attribute of its kind, because attributes set after the constructor
    # give each instance its own dictionary of 600 bytes.
    _latest: invocation.Invocation | None = None

    if TYPE_CHECKING:

        def _step(self, *args: Any, **kwargs: Any) -> Any:
            """Declare the arguments and the result of the task as a step of a workflow."""

    @classmethod
    def options(cls, **options: Unpack[call_options.CallOptions]) -> type[Self]:
        """Return this task with other values of some attributes, for one use.

        ::

            steps.run(charge.options(retries=5, timelimit=10), order=order)
            flow.add(charge.options(retries=5)("charge"))

        The record, the name and the worker's task stay the same. For a step, a replay may use other
        options: those of the current code apply. Reverts of a whole workflow use the attributes of
        the task.

        :param options: `retries`, `backoff`, `retry_on`, `retry_for`, `timelimit`, `expires`,
            `eta`, `priority`, `idempotent`, `cost`, and another `limit` with its `rate_limit`,
            `concurrency` and `concurrency_key`. Of a workflow: `priority` and those of retries.
        :raises TypeError, ValueError: if an option is unknown or invalid.
        """
        # Loaded here, because most programs do not use it.
        with_options = object_names.load("wbengine._tasks.call_options:with_options")
        return cast("type[Self]", with_options(cls, options))

    def _signatures(self) -> tuple[binding.Signature, binding.Signature]:
        execute, revert = super()._signatures()
        if self.transaction is None:
            return execute, revert
        self._check_transaction(execute, revert)
        return execute.without((CONNECTION,)), revert.without((CONNECTION,))

    def _check_transaction(self, execute: binding.Signature, revert: binding.Signature) -> None:
        name = self.transaction
        if not isinstance(name, str) or not object_names.is_label(name):
            raise ValueError(f"transaction must be the name of a database, got {name!r}")
        if execute.positional[:1] != (CONNECTION,):
            raise ValueError(
                f"{object_names.dotted(type(self))} has a transaction, so the first argument of"
                f" execute must be {CONNECTION!r}, got {', '.join(execute.positional) or 'none'}"
            )
        if self.detached:
            raise ValueError(
                f"{object_names.dotted(type(self))} must not be detached, because it has a"
                " transaction"
            )
        if execute.is_async or revert.is_async:
            raise ValueError(
                f"{object_names.dotted(type(self))} has a transaction, so its functions must not be"
                " 'async def': they would block the event loop of other tasks"
            )

    def _default_name(self) -> str:
        return object_names.class_name(type(self))

    @property
    def notifier(self) -> nt.RestrictedNotifier:
        notifier = self._listeners
        if notifier is None:
            new_notifier = nt.RelayingNotifier(self.TASK_EVENTS)
            # Atomic: concurrent first accesses return the same notifier.
            notifier = cast(
                nt.RelayingNotifier, self.__dict__.setdefault("_listeners", new_notifier)
            )
            notifier.sink = None if (call := self._latest) is None else call.events
        return notifier

    #: TaskFlow's name for `notifier`, used by its subclasses.
    _notifier = notifier

    def attach(self, call: invocation.Invocation) -> None:
        """Send further events of the task to `call.events`, after its listeners received them."""
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
        """Whether the running execution or revert was cancelled and should return soon.

        A long `execute` or `revert` should read this from time to time, in any of its threads. It
        works wherever the task runs and costs little. It is False if the task is not running.
        """
        call = running.current(self) or self._latest
        return call is not None and call.cancellation.cancelled

    @property
    def request(self) -> running.Request | None:
        """Public data of the running call, or None.

        Available in `execute`, `revert` and functions that they call. Pass it to threads that they
        start. `request.id` is the same in all processes for the same execution, also if it
        runs again because its process ended.
        """
        call = running.current(self)
        if call is None:
            return None
        deadline = call.cancellation.deadline
        if call.origin is not None:
            return call.origin._replace(deadline=deadline)
        first = call.attempt - call.repeats
        name = invocation.request_id(call.uuid, call.action, first, call.index)
        return running.Request(
            name,
            call.attempt,
            call.epoch,
            call.flow_uuid,
            running.LOCAL,
            deadline,
            call.recovered,
            call.cancellation.left and self.detached and call.action == invocation.EXECUTE,
        )

    def update_progress(self, progress: float) -> None:
        """Report the progress of the task. Values outside 0.0 to 1.0 are clamped, with a warning.

        :raises TypeError: if the progress is not a number.
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
        if _copies_plainly(type(self)):
            # Equivalent to `copy.copy`, but five times as fast. A Map creates a copy for each item.
            duplicate = type(self).__new__(type(self))
            vars(duplicate).update(self.__getstate__())
        else:
            duplicate = copy.copy(self)
        if retain_listeners and self._listeners is not None:
            duplicate._listeners = cast(nt.RelayingNotifier, self._listeners.copy())
            duplicate._listeners.sink = None
        return duplicate

    def __getstate__(self) -> dict[str, Any]:
        # Listeners and the running call stay in this process.
        state = self.__dict__.copy()
        state.pop("_listeners", None)
        state.pop("_latest", None)
        return state


def _copies_plainly(cls: type[Task]) -> bool:
    is_plain: bool | None = vars(cls).get("_plain")  # Not inherited from a base class.
    if is_plain is None:
        is_plain = all(getattr(cls, name, None) is getattr(Task, name, None) for name in _COPYING)
        cls._plain = is_plain
    return is_plain
