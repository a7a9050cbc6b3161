"""Task classes that a worker offers. Each request gets a new instance."""

from __future__ import annotations

import enum
import inspect
import logging
import time
import types
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from wbengine import exceptions as exc
from wbengine import running
from wbengine import task as task_module
from wbengine._calls import invocation
from wbengine._concurrency import time_limits
from wbengine._introspection import object_names
from wbengine._logs import captured_lines
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._concurrency import event_loop
    from wbengine.engines.worker_based._messages.requests import Request
    from wbengine.engines.worker_based._worker_side.jobs import Job


LOG: Final = logging.getLogger(__name__)

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Turn(enum.Enum):
    """Result of `Endpoint.begin` if the task did not run."""

    #: The request got its slot so late that another worker may own it.
    MISSED = 1


class Endpoint:
    """A task class with its `execute` and `revert`, under its dotted name."""

    def __init__(self, task_cls: type[task_module.Task]) -> None:
        self._task_cls = task_cls
        self._name = object_names.class_name(task_cls)
        self._plain = _is_plain(task_cls)
        self._pattern: dict[str, Any] | None = None
        # Names of the arguments that `execute` accepts (None: all), and those that it requires.
        self._accepted, self._required = _argument_names(task_cls)

    def accepts(self, names: Collection[str]) -> bool:
        """Return whether `execute` can be called with exactly these arguments."""
        return self._required.issubset(names) and (
            self._accepted is None or self._accepted.issuperset(names)
        )

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
        """Create a task of the class, with its name in the flow.

        :raises ExecutionFailure: if the constructor requires more arguments.
        """
        cls = self._task_cls
        if name is not None and self._plain:
            # Task classes without a constructor: instances differ only in the name.
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
                f"a worker cannot construct {self._name}(name=...): {error}; a remote task"
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
            task,
            invocation.REVERT,
            "",
            arguments=arguments,
            result=result,
            failures=failures,
            events=events,
        )
        return _invoke(call, loop, origin)

    def begin(
        self,
        unit: pr.WorkUnit,
        loop: event_loop.EventLoop | None,
        expires: float | None,
        fresh: float,
        emit: invocation.EventSink,
    ) -> invocation.Outcome | Literal[Turn.MISSED]:
        """`run` the request unless it is too late when the request gets its slot.

        :param expires: Unix time after which it must not start.
        :param fresh: time on the monotonic clock until which this worker certainly owns it.
        """
        if expires is not None and time.time() > expires:
            late = exc.Expired(f"task {unit.task_name!r} expired before it started")
            return invocation.Outcome(ft.Failure.from_exception(late))
        if time.monotonic() > fresh:
            return Turn.MISSED
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
                failure.belongs_to(self._task_cls.__module__)
        action: invocation.Action = unit.action  # type: ignore[assignment]  # it was validated
        call = invocation.Invocation(
            task, action, "", 1, unit.arguments, unit.result, unit.failures, emit
        )
        call.captures = unit.captures and emit is not None
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
    return invocation.invoke(call, loop)


class Offer:
    """The endpoints of one worker by name, and the digest of its ledger."""

    def __init__(self, identity: str, offered: Mapping[str, Endpoint], ledger: str | None) -> None:
        self._identity = identity
        self._endpoints = dict(offered)
        self.names = tuple(sorted(offered))
        self.ledger = ledger
        #: Digests of the same ledger before it lost its data.
        self.former_ledgers: frozenset[str | None] = frozenset()
        # Tasks whose unaccepted arguments were logged.
        self._logged: set[str] = set()

    def check_ledger(self, request: Request) -> None:
        """Check that a request uses the ledger of this worker.

        :raises NotFound: if its row is in another ledger, or if it has no row although this worker
            has a ledger.
        """
        if self.ledger is not None and request.ledger is None:
            raise exc.NotFound(
                f"the request uses no ledger, but worker {self._identity} accepts only"
                f" requests of its ledger {self.ledger}: configure the same ledger for"
                " engine and worker"
            )
        if request.ledger != self.ledger and request.ledger not in self.former_ledgers:
            raise exc.NotFound(
                f"the request uses ledger {request.ledger!s:.120}, but worker {self._identity}"
                f" uses {self.ledger or 'none'}: configure the same ledger for engine and"
                " worker"
            )

    def find(self, job: Job, request: Request) -> None:
        """Find the endpoint by name without decoding user values; else set the job's refusal."""
        name = request.body["task_cls"]
        job.endpoint = self._endpoints.get(name)
        job.refusal = request.version_error()
        if job.endpoint is None and job.refusal is None:
            job.refusal = self._unknown(name)

    def decode(self, job: Job) -> None:
        """Decode the arguments of a claimed job; if they are not valid, set the job's refusal.

        The claim must come first. If the arguments kill or freeze the worker, the request then has
        an owner, so the number of resends is limited.
        """
        request, job.request = job.request, None
        assert request is not None and job.endpoint is not None
        try:
            shown = running.Request(job.id, job.attempt, job.epoch, job.flow, self._identity)
            job.unit = pr.Request.decode(request.body, env.unpacker(job.extended), shown)
            job.unit.captures = job.captures
            if not job.extended and job.limit is time_limits.UNLIMITED:
                # TaskFlow's engines do not send limits.
                job.limit = time_limits.read(job.endpoint.task_cls.timelimit)
        except Exception as error:  # The refusal becomes the reply.
            job.refusal = error

    def refuses_arguments(self, job: Job) -> bool:
        """Return whether the task of this worker cannot be called with the arguments.

        The engine has checked them with its own code, so this worker has other code. Each task is
        logged once. TaskFlow's requests are never refused.
        """
        endpoint, unit = job.endpoint, job.unit
        assert endpoint is not None and unit is not None
        if not job.extended or unit.action != invocation.EXECUTE:
            return False
        if endpoint.accepts(unit.arguments.keys()):
            return False
        if endpoint.name not in self._logged:
            self._logged.add(endpoint.name)
            LOG.warning(
                "task %s of this worker does not accept the arguments %s of request %s: its engine"
                " has other code; such requests return to the queue, for other workers",
                endpoint.name, ", ".join(sorted(unit.arguments)) or "()", job.id,
            )  # fmt: skip
        return True

    def _unknown(self, task_cls: str) -> Exception:
        return exc.NotFound(
            f"worker {self._identity} does not offer {task_cls}"
            f"{object_names.hint(task_cls, self.names)}; it offers: {', '.join(self.names[:8])}"
        )


def _argument_names(
    task_cls: type[task_module.Task],
) -> tuple[frozenset[str] | None, frozenset[str]]:
    is_method = isinstance(inspect.getattr_static(task_cls, "execute"), types.FunctionType)
    try:
        parameters = list(inspect.signature(task_cls.execute).parameters.values())[is_method:]
    except (TypeError, ValueError):
        return None, frozenset()
    named = [each for each in parameters if each.kind in _BY_NAME]
    if len(named) < len(parameters):  # `*args`, `**kwargs` or positional ones
        return None, frozenset()
    required = (each.name for each in named if each.default is inspect.Parameter.empty)
    return frozenset(each.name for each in named), frozenset(required)


def _is_plain(cls: type[task_module.Task]) -> bool:
    return cls.__init__ is task_module.Task.__init__ and cls.__new__ is object.__new__


def endpoints_of(tasks: Iterable[type[task_module.Task]]) -> dict[str, Endpoint]:
    """Return endpoints by the dotted names of their task classes, which requests contain.

    :raises ValueError: if two classes have the same name.
    """
    endpoints: dict[str, Endpoint] = {}
    for endpoint in map(Endpoint, tasks):
        if endpoints.setdefault(endpoint.name, endpoint) != endpoint:
            raise ValueError(f"Task name {endpoint.name} is used by two different task classes")
    return endpoints


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
