"""What a worker offers: one task class, from which every request gets an instance of its own."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine import task as task_module
from wbengine.engines.worker_based import protocol as pr
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import loops


class Endpoint:
    """A task class with its `execute` and `revert`, under its dotted name."""

    def __init__(self, task_cls: type[task_module.Task]) -> None:
        self._task_cls = task_cls
        self._name = _names.class_name(task_cls)
        self._pattern: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def task_cls(self) -> type[task_module.Task]:
        return self._task_cls

    def __str__(self) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Endpoint):
            return NotImplemented
        return self._task_cls is other._task_cls

    def __hash__(self) -> int:
        return hash(self._task_cls)

    def generate(self, name: str | None = None) -> task_module.Task:
        """Make a task of the class, under the name it has in its flow.

        :raises ExecutionFailure: the class needs more than a name to be constructed; workers know
            nothing of how the flow's author constructed it.
        """
        cls = self._task_cls
        if name is not None and _is_plain(cls):
            # Nobody's own constructor: what it would do is the same each time, but for the name.
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
                f"a worker cannot construct {self._name}(name=...): {error}; a task that runs"
                f" remotely gets what it needs as arguments of execute, not of its constructor"
            ) from error

    def execute(
        self,
        task: task_module.Task,
        arguments: Mapping[str, Any],
        events: invocation.EventSink | None = None,
        loop: loops.Loop | None = None,
    ) -> invocation.Outcome:
        """Execute a task that `generate` made; whatever it raises is the outcome."""
        return invocation.invoke(
            invocation.Invocation(task, invocation.EXECUTE, "", arguments=arguments, events=events),
            loop,
        )

    def revert(
        self,
        task: task_module.Task,
        arguments: Mapping[str, Any],
        result: Any = None,
        failures: Mapping[str, ft.Failure] = invocation.NO_FAILURES,
        events: invocation.EventSink | None = None,
        loop: loops.Loop | None = None,
    ) -> invocation.Outcome:
        """Revert a task that `generate` made; whatever it raises is the outcome."""
        return invocation.invoke(
            invocation.Invocation(
                task,
                invocation.REVERT,
                "",
                arguments=arguments,
                result=result,
                failures=failures,
                events=events,
            ),
            loop,
        )

    def run(
        self, unit: pr.WorkUnit, loop: loops.Loop | None, emit: invocation.EventSink
    ) -> invocation.Outcome:
        """Make a task and do with it what a request asks for; every error is an outcome.

        Async bodies run in `loop`, or without one in that of the process.  Endpoints pickle, so
        this may run in a child process.
        """
        try:
            task = self.generate(unit.task_name)
        except BaseException as error:
            return invocation.Outcome(ft.Failure.from_exception(error))
        if unit.action == pr.EXECUTE:
            return self.execute(task, unit.arguments, emit, loop)
        for failure in (unit.result, *unit.failures.values()):
            if isinstance(failure, ft.Failure):
                failure.belongs_to(self._task_cls.__module__)
        return self.revert(task, unit.arguments, unit.result, unit.failures, emit, loop)


def _is_plain(cls: type[task_module.Task]) -> bool:
    return cls.__init__ is task_module.Task.__init__ and cls.__new__ is object.__new__


def endpoints_of(tasks: Iterable[type[task_module.Task]]) -> dict[str, Endpoint]:
    """Index endpoints for task classes by dotted name, which is all that a request says.

    :raises ValueError: two classes have the same name.
    """
    found: dict[str, Endpoint] = {}
    for endpoint in map(Endpoint, tasks):
        if found.setdefault(endpoint.name, endpoint) != endpoint:
            raise ValueError(f"{endpoint.name} is the name of two different task classes")
    return found


def find_tasks(items: Iterable[Any]) -> list[type[task_module.Task]]:
    """The task classes named by `items`: classes, modules, or names of either.

    A name is `module`, `module:Class` or `module.Class`.  A module stands for all task classes in
    it that are not wbengine's own.  Each class is returned once, in order.

    :raises ValueError: an item holds no tasks, or is no task class; it says which.
    :raises ImportError: a name cannot be imported.
    """
    found: dict[type[task_module.Task], None] = {}
    for item in items:
        thing = _names.load(item) if isinstance(item, str) else item
        if isinstance(thing, types.ModuleType):
            classes = [value for value in vars(thing).values() if _is_task(value)]
            if not classes:
                raise ValueError(f"module {thing.__name__!r} holds no tasks")
            found.update(dict.fromkeys(classes))
        elif _is_task(thing):
            found[thing] = None
        else:
            raise ValueError(f"{item!r} is neither a task class nor a module of tasks")
    return list(found)


def _is_task(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, task_module.Task)
        and value.__module__ != task_module.__name__
        and not inspect.isabstract(value)
    )
