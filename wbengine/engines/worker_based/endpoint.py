"""Task classes that a worker offers. Each request gets a new instance."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine import running
from wbengine import task as task_module
from wbengine._calls import invocation
from wbengine._introspection import object_names
from wbengine._logs import captured_lines
from wbengine.engines.worker_based import protocol as pr
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._concurrency import event_loop
    from wbengine._payloads.payloads import Payloads


_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Endpoint:
    """A task class with its `execute` and `revert`, under its dotted name."""

    def __init__(self, task_cls: type[task_module.Task]) -> None:
        self.task_cls = task_cls
        self.name = object_names.class_name(task_cls)
        # Whether it has no constructor: instances differ only in the name.
        self._plain = (
            task_cls.__init__ is task_module.Task.__init__ and task_cls.__new__ is object.__new__
        )
        #: Where large values are; None: they are in the messages.
        self.payloads: Payloads | None = None
        self._pattern: dict[str, Any] | None = None
        # Names of the arguments that `execute` accepts (None: all), and those that it requires.
        self._accepted, self._required = _argument_names(task_cls)

    def accepts(self, names: Collection[str]) -> bool:
        """Return whether `execute` can be called with exactly these arguments."""
        return self._required.issubset(names) and (
            self._accepted is None or self._accepted.issuperset(names)
        )

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Endpoint):
            return NotImplemented
        return self.task_cls is other.task_cls

    def __hash__(self) -> int:
        return hash(self.task_cls)

    def generate(self, name: str | None = None) -> task_module.Task:
        """Create a task of the class, with its name in the flow.

        :raises ExecutionFailure: if the constructor requires more arguments.
        """
        cls = self.task_cls
        if name is not None and self._plain:
            if self._pattern is None:
                self._pattern = vars(cls())
            task = cls.__new__(cls)
            vars(task).update(self._pattern)
            task.name = name
            return task
        try:
            return cls(name=name)
        except TypeError as error:
            raise exc.ExecutionFailure(
                f"a worker cannot construct {self.name}(name=...): {error}; a remote task"
                " must receive its values as arguments of execute, not of its constructor"
            ) from error

    def execute(
        self,
        task: task_module.Task,
        arguments: Mapping[str, Any],
        events: invocation.EventSink | None = None,
        loop: event_loop.EventLoop | None = None,
        origin: running.Request | None = None,
    ) -> invocation.Outcome:
        """Execute a task from `generate`. An exception becomes the outcome."""
        call = invocation.Invocation(
            task, invocation.EXECUTE, "", arguments=arguments, events=events
        )
        return _invoke(call, loop, origin)

    def revert(
        self,
        task: task_module.Task,
        arguments: Mapping[str, Any],
        result: Any = None,
        failures: Mapping[str, ft.Failure] = invocation.NO_FAILURES,
        events: invocation.EventSink | None = None,
        loop: event_loop.EventLoop | None = None,
        origin: running.Request | None = None,
    ) -> invocation.Outcome:
        call = invocation.Invocation(
            task, invocation.REVERT, "", 1, arguments, result, failures, events
        )
        return _invoke(call, loop, origin)

    def begin(
        self,
        unit: pr.WorkUnit,
        loop: event_loop.EventLoop | None,
        expires: float | None,
        fresh: float,
        emit: invocation.EventSink,
    ) -> invocation.Outcome | None:
        """`run` the request unless it is too late when the request gets its slot.

        :param expires: Unix time after which it must not start.
        :param fresh: time on the monotonic clock until which this worker certainly owns it.
        :returns: None if another worker may own it.
        """
        if expires is not None and time.time() > expires:
            late = exc.Expired(f"task {unit.task_name!r} expired before it started")
            return invocation.Outcome(ft.Failure.from_exception(late))
        if time.monotonic() > fresh:
            return None
        return self.run(unit, loop, emit)

    def run(
        self, unit: pr.WorkUnit, loop: event_loop.EventLoop | None, emit: invocation.EventSink
    ) -> invocation.Outcome:
        """Create a task and execute or revert it, possibly in a child process.

        All errors become outcomes. Async bodies run in `loop`, else in the loop of the process.
        """
        try:
            task = self.generate(unit.task_name)
        except BaseException as error:
            return invocation.Outcome(ft.Failure.from_exception(error))
        for failure in (unit.result, *unit.failures.values()):
            if isinstance(failure, ft.Failure):
                failure.belongs_to(self.task_cls.__module__)
        action: invocation.Action = unit.action  # type: ignore[assignment]  # it was validated
        call = invocation.Invocation(
            task, action, "", 1, unit.arguments, unit.result, unit.failures, emit
        )
        call.captures = unit.captures and emit is not None
        call.row, call.settled = unit.row, unit.settled
        call.payloads = self.payloads
        call.stores_large = self.payloads is not None and unit.stores_large
        if call.captures:
            captured_lines.capture()
        return _invoke(call, loop, unit.request)


def _invoke(
    call: invocation.Invocation, loop: event_loop.EventLoop | None, origin: running.Request | None
) -> invocation.Outcome:
    call.origin = origin
    cancellation = getattr(call.events, "cancellation", None)
    if cancellation is not None:  # A pool provides it.
        call.cancellation = cancellation
    outcome = invocation.invoke(call, loop)
    if call.tags is not None:
        call.tags.resend()
    call.send_spent()
    return outcome


def _argument_names(
    task_cls: type[task_module.Task],
) -> tuple[frozenset[str] | None, frozenset[str]]:
    is_method = isinstance(inspect.getattr_static(task_cls, "execute"), types.FunctionType)
    try:
        parameters = list(inspect.signature(task_cls.execute).parameters.values())[is_method:]
        if task_cls.transaction is not None:
            parameters = [each for each in parameters if each.name != invocation.CONNECTION]
    except (TypeError, ValueError):
        return None, frozenset()
    named = [each for each in parameters if each.kind in _BY_NAME]
    if len(named) < len(parameters):  # `*args`, `**kwargs` or positional ones
        return None, frozenset()
    required = (each.name for each in named if each.default is inspect.Parameter.empty)
    return frozenset(each.name for each in named), frozenset(required)


def endpoints_of(tasks: Iterable[type[task_module.Task]]) -> dict[str, Endpoint]:
    """Return endpoints by the dotted names of their task classes, which requests contain.

    :raises ValueError: if two classes have the same name.
    """
    endpoints: dict[str, Endpoint] = {}
    for endpoint in map(Endpoint, tasks):
        if endpoints.setdefault(endpoint.name, endpoint) != endpoint:
            raise ValueError(f"Task name {endpoint.name} is used by two different task classes")
    return endpoints


def check_databases(endpoints: Iterable[Endpoint]) -> None:
    """Check that this process has the databases of these tasks.

    :raises NotFound: if one is not registered.
    """
    names = {each.task_cls.transaction: each.name for each in endpoints}
    names.pop(None, None)
    if names:
        # Loaded here, because most workers need no database.
        object_names.load("wbengine._transactions.registered:check")(names)


def modules(endpoints: Iterable[Endpoint]) -> set[str]:
    """Return the modules that a new process must import before it can call these endpoints."""
    return {__name__, *(endpoint.task_cls.__module__ for endpoint in endpoints)}


def find_tasks(items: Iterable[Any]) -> list[type[task_module.Task]]:
    """Return the task classes for `items`: classes, modules, or names of either.

    A name is `module`, `module:Class` or `module.Class`. A module represents all of its task
    classes, without those of wbengine. Each class is returned once, in order.

    :raises ValueError: if an item contains no tasks or is not a task class; the error names it.
    :raises ImportError: if a name cannot be imported.
    """
    tasks: dict[type[task_module.Task], None] = {}
    for item in items:
        loaded = object_names.load(item, _is_wanted) if isinstance(item, str) else item
        if isinstance(loaded, types.ModuleType):
            classes = [value for value in vars(loaded).values() if _is_task(value)]
            if not classes:
                raise ValueError(f"module {loaded.__name__!r} contains no task classes")
            tasks.update(dict.fromkeys(classes))
        elif _is_task(loaded):
            tasks[loaded] = None
        else:
            raise ValueError(
                f"tasks must be task classes or modules that contain them, got {item!r}"
            )
    return list(tasks)


def _is_wanted(value: Any) -> bool:
    return isinstance(value, types.ModuleType) or _is_task(value)


def _is_task(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, task_module.Task)
        and value.__module__ != task_module.__name__
        and not inspect.isabstract(value)
    )
