"""What a worker offers: one task class, from which every request gets an instance of its own."""

from __future__ import annotations

import enum
import inspect
import time
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from wbengine import _names, invocation, running, task_logs
from wbengine import exceptions as exc
from wbengine import task as task_module
from wbengine.concurrency import limits
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side.jobs import Job
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop


class Turn(enum.Enum):
    """What became of a request's turn, other than an outcome."""

    #: It came so late that the request may be somebody else's by now.
    MISSED = 1


class Endpoint:
    """A task class with its `execute` and `revert`, under its dotted name."""

    def __init__(self, task_cls: type[task_module.Task]) -> None:
        self._task_cls = task_cls
        self._name = _names.class_name(task_cls)
        self._plain = _is_plain(task_cls)
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
        if name is not None and self._plain:
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
        loop: event_loop.EventLoop | None = None,
        origin: running.Request | None = None,
    ) -> invocation.Outcome:
        """Execute a task that `generate` made; whatever it raises is the outcome."""
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
        """Revert a task that `generate` made; whatever it raises is the outcome."""
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
        """`run`, if it may be run yet now that its turn has come, however long that took.

        It is of no use after `expires`, in unix seconds, and certainly still this worker's until
        `fresh`, on the monotonic clock of this host.
        """
        if expires is not None and time.time() > expires:
            late = exc.Expired(f"task {unit.task_name!r} had its turn after its time was up")
            return invocation.Outcome(ft.Failure.from_exception(late))
        if time.monotonic() > fresh:
            return Turn.MISSED
        return self.run(unit, loop, emit)

    def run(
        self, unit: pr.WorkUnit, loop: event_loop.EventLoop | None, emit: invocation.EventSink
    ) -> invocation.Outcome:
        """Make a task and do with it what a request asks for; every error is an outcome.

        Async bodies run in `loop`, or without one in that of the process.  Endpoints pickle, so
        this may run in a child process.
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
            task_logs.capture()
        return _invoke(call, loop, unit.request)


def _invoke(
    call: invocation.Invocation, loop: event_loop.EventLoop | None, origin: running.Request | None
) -> invocation.Outcome:
    call.origin = origin
    cancellation = getattr(call.events, "cancellation", None)
    if cancellation is not None:  # that of a pool
        call.cancellation = cancellation
    return invocation.invoke(call, loop)


class Offer:
    """The endpoints of one worker, by name, and the digest of the ledger that it holds."""

    def __init__(self, identity: str, offered: Mapping[str, Endpoint], ledger: str | None) -> None:
        self._identity = identity
        self._endpoints = dict(offered)
        self.names = tuple(sorted(offered))
        self.ledger = ledger

    def check_ledger(self, job: Job, request: env.Envelope) -> None:
        """
        :raises NotFound: the request has its row in a ledger that this worker does not hold; or has
            none, although this worker holds one, which alone knows whether it was run before.
        """
        named = request.headers.get(env.WBE_LEDGER)
        if self.ledger is not None and not job.ledger:
            raise exc.NotFound(
                f"the request has no row in a ledger, and worker {self._identity} runs only what"
                f" its ledger {self.ledger} grants: give engine and worker the same"
            )
        if job.ledger and (self.ledger is None or named != self.ledger):
            raise exc.NotFound(
                f"worker {self._identity} does not hold the ledger {str(named)[:120]} that the"
                f" request was opened in (it holds {self.ledger or 'none'}): give engine and"
                f" worker the same"
            )

    def find(self, job: Job, request: env.Envelope) -> None:
        """Find what is to be run, by its name; if that cannot be, why not is the job's refusal.

        Nothing of the user is decoded: see `decode`.
        """
        job.name, name = request.body["task_name"], request.body["task_cls"]
        job.body, job.endpoint = request.body, self._endpoints.get(name)
        version = request.headers.get(env.WBE_VERSION, env.VERSION)
        if version != env.VERSION:
            job.refusal = exc.IncompatibleVersion(
                f"this worker speaks version {env.VERSION} of the protocol, the request is of"
                f" version {str(version)[:80]}"
            )
        elif job.endpoint is None:
            job.refusal = self._unknown(name)

    def decode(self, job: Job) -> None:
        """Read the arguments of a job that was granted; if that cannot be, why not is its refusal.

        Not before: a request whose arguments kill or freeze the worker that reads them has a holder
        then, and is sent to so many others at most.
        """
        body, job.body = job.body, None
        assert body is not None and job.endpoint is not None
        try:
            who = running.Request(job.id, job.attempt, job.epoch, job.flow, self._identity)
            job.unit = pr.Request.decode(body, env.unpacker(job.ours), who)
            job.unit.captures = job.captures
            if not job.ours and job.limit is limits.UNLIMITED:
                # TaskFlow's engines know of no limits; the class says what it is given.
                job.limit = limits.read(job.endpoint.task_cls.timelimit)
        except Exception as error:  # whatever a body does, it is answered
            job.refusal = error

    def _unknown(self, task_cls: str) -> Exception:
        return exc.NotFound(
            f"worker {self._identity} does not offer {task_cls}"
            f"{_names.hint(task_cls, self.names)}; it offers: {', '.join(self.names[:8])}"
        )


def job_of(request: env.Envelope, receipt: Any) -> Job:
    """A job, with what the headers of a request say."""
    name, epoch = request.correlation_id or "", request.number(env.WBE_EPOCH, 1)
    headers = request.headers
    job = Job(name, epoch, (name, epoch), request.reply_to or "", receipt, asked=epoch, name=name)
    job.attempt = request.number(env.WBE_ATTEMPT, 1)
    job.flow = request.text(env.ROOT_ID) or ""
    job.ours = request.ours
    job.ledger = env.WBE_LEDGER in headers
    job.captures = env.WBE_LOGS in headers
    job.redelivered = request.redelivered
    if env.TIMELIMIT in headers:
        job.limit = _limit(headers[env.TIMELIMIT])
    if env.EXPIRES in headers and not job.ledger:
        job.expires = request.seconds(env.EXPIRES)
    return job


def _limit(value: Any) -> limits.TimeLimit:
    """The limits in a request, hard one first; what is none does not limit."""
    try:
        hard, soft = value
        return limits.read((soft, hard))
    except (TypeError, ValueError, OverflowError):
        return limits.UNLIMITED


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


def modules(found: Iterable[Endpoint]) -> set[str]:
    """The names of all that a fresh process imports to call these."""
    return {__name__, *(one.task_cls.__module__ for one in found)}


def find_tasks(items: Iterable[Any]) -> list[type[task_module.Task]]:
    """The task classes named by `items`: classes, modules, or names of either.

    A name is `module`, `module:Class` or `module.Class`.  A module stands for all task classes in
    it that are not wbengine's own.  Each class is returned once, in order.

    :raises ValueError: an item holds no tasks, or is no task class; it says which.
    :raises ImportError: a name cannot be imported.
    """
    found: dict[type[task_module.Task], None] = {}
    for item in items:
        thing = _names.load(item, _is_wanted) if isinstance(item, str) else item
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


def _is_wanted(value: Any) -> bool:
    return isinstance(value, types.ModuleType) or _is_task(value)


def _is_task(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, task_module.Task)
        and value.__module__ != task_module.__name__
        and not inspect.isabstract(value)
    )
