"""The interface between engines and executors: calls of tasks and their results.

An engine decides what runs next. An executor decides where it runs: in this thread, in a pool, or
on a remote worker. The engine calls it only through `TaskExecutor`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import hashlib
import inspect
import itertools
import threading
import time
import types
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from wbengine import _payloads, exceptions, running
from wbengine._concurrency import contexts, forks
from wbengine._concurrency.call import Cancellation
from wbengine._introspection import binding, object_names
from wbengine._logs import captured_lines, record_fields
from wbengine._text import rates
from wbengine.atom import REVERT_FLOW_FAILURES, REVERT_RESULT, Atom
from wbengine.types import _references, _tags
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import task as task_module
    from wbengine._concurrency import event_loop
    from wbengine._payloads.payloads import Payloads

Action = Literal["execute", "revert"]
EXECUTE: Final = "execute"
REVERT: Final = "revert"

#: The argument of tasks with a transaction.
CONNECTION: Final = "connection"

#: The event of a task that reports the units of its limit. Details: `units`.
SPENT: Final = "wbengine.spent"

#: The event in the results of `execute_task` and `revert_task`.
EXECUTED: Final = "executed"
REVERTED: Final = "reverted"

#: `(event_type, details)`: receives the events of a running task.
EventSink = Callable[[str, dict[str, Any]], None]


class _Nothing(dict[str, Any]):
    """A shared empty dict that is never modified."""

    __hash__ = object.__hash__  # type: ignore[assignment]


NO_ARGUMENTS: Final[Mapping[str, Any]] = _Nothing()
NO_FAILURES: Final[Mapping[str, ft.Failure]] = _Nothing()

_COROUTINE: Final = types.CoroutineType

_tags_lock: Final = threading.Lock()

#: Failures after which it is unknown whether the execution took effect.
_UNKNOWN_EFFECT: Final = (exceptions.Interrupted, exceptions.WorkerLost)

# Hooks that do nothing. They are not called.
_IDLE_HOOKS: Final = frozenset(
    {Atom.pre_execute, Atom.post_execute, Atom.pre_revert, Atom.post_revert}
)

_set_current: Final = running.CURRENT.set
_decimal_context: Final = contexts.DECIMAL.get

# Attempt numbers for `execute_task` and `revert_task`, whose callers do not number attempts.
_attempts = itertools.count(1)

contexts.log_fields = record_fields.of_context

_NAMESPACE: Final = bytes.fromhex("8f3e6c525d0b4d6b9c550b8ee3a4a7c1")


def request_id(uuid: str, action: str, attempt: int, index: int = -1, resumed: int = 0) -> str:
    """Return an id that is the same for two calls only if they are the same execution."""
    name = f"{uuid}|{action}|{attempt}"
    if index >= 0:
        name = f"{name}|{index}"
        if resumed:
            name = f"{name}|{resumed}"
    # Equivalent to `uuid.uuid5`, in a third of the time.
    digest = hashlib.sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


@dataclass(slots=True, eq=False, repr=False)
class Invocation:
    """A call to execute or revert a task.

    :ivar uuid: uuid of the atom.
    :ivar attempt: number of the attempt. It only increases for a flow detail.
    :ivar repeats: number of attempts before this one that ended with their engine, and that it
        repeats.
    :ivar result: result of the execution, for reverts.
    :ivar failures: failures of the flow, for reverts.
    :ivar events: receives the events of the running task in order, from any thread. If it has a
        method `began(worker, requests_write)`, this is called at the start.
    :ivar node: data of the creator. Executors return it unchanged.
    :ivar index: index of the item of a `Map`, otherwise -1.
    :ivar resumed: how often the attempt of the Map was interrupted. Earlier calls may still run.
    :ivar epoch: the epoch for requests. Each run uses different epochs, which increase.
    :ivar recovered: whether the call continues one that may have been submitted before.
    :ivar lost: whether a worker was lost with the call in an earlier run.
    :ivar cancellation: cancels the call. A cancelled call must not start. If it is recovered, its
        earlier result is awaited.
    :ivar local: whether the call must run in the process of the engine.
    :ivar not_before: earliest start, or None: on the monotonic clock of the engine, and, after the
        call is submitted to an executor, on that of this host.
    :ivar not_after: latest start on the same clock, or None.
    :ivar ticket: data of the executor.
    :ivar origin: on a worker, the request that the call executes; otherwise None.
    :ivar captures: whether to send the logs of the task as `events`. This requires
        `task_logs.capture` in the process.
    :ivar log: the captured log while the task runs.
    :ivar tags: the tags that the task has set, or None.
    :ivar spent: the units of its limit that the task has reported, or None.
    :ivar settled: for a task with a transaction, the highest attempt whose result was recorded
        before its latest execution began.
    :ivar row: on a worker, the key of the row of a task with a transaction.
    :ivar step: for a step of a workflow, data of the creator; otherwise None.
    :ivar payloads: folder or bucket of large values, from which the arguments are loaded.
    :ivar stores_large: whether references replace large parts of the result.
    :ivar context: the context in which the task runs, and which it changes. None: a copy of the
        context of `invoke`.
    """

    task: task_module.Task
    action: Action
    uuid: str
    attempt: int = 1
    arguments: Mapping[str, Any] = NO_ARGUMENTS
    result: Any = None
    failures: Mapping[str, ft.Failure] = NO_FAILURES
    events: EventSink | None = None
    node: int = -1
    flow_uuid: str = ""
    priority: int = 0
    index: int = -1
    repeats: int = 0
    resumed: int = 0
    epoch: int = 1
    recovered: bool = False
    lost: bool = False
    cancellation: Cancellation = field(default_factory=Cancellation)
    local: bool = False
    not_before: float | None = None
    not_after: float | None = None
    ticket: Any = None
    origin: running.Request | None = None
    captures: bool = False
    log: captured_lines.TaskLog | None = None
    step: Any = None
    context: contextvars.Context | None = None
    tags: _tags.CallTags | None = None
    spent: float | None = None
    settled: int = 0
    row: str = ""
    payloads: Payloads | None = None
    stores_large: bool = False

    def tag(self, tags: Mapping[str, _tags.Value]) -> None:
        """Set tags of the flow. Thread-safe.

        :raises TypeError, ValueError: if they are invalid.
        """
        if self.tags is None:
            with _tags_lock:
                epoch = self.epoch if self.origin is None else self.origin.epoch
                self.tags = self.tags or _tags.CallTags(self.events, epoch)
        self.tags.set(tags)

    def spend(self, units: float) -> None:
        """Report the units of the limit that the task has used. The latest report counts.

        :raises TypeError, ValueError: if they are not a finite number of at least 0.
        """
        self.spent = rates.check_units("spent units", units)
        self.send_spent()

    def send_spent(self) -> None:
        """Send the latest report to the engine, possibly again."""
        if self.events is not None and self.spent is not None:
            self.events(SPENT, {"units": self.spent})

    def shift_times(self, seconds: float) -> None:
        """Convert the earliest and the latest start to a clock that is so many seconds ahead."""
        if self.not_before is not None:
            self.not_before += seconds
        if self.not_after is not None:
            self.not_after += seconds

    def expired(self, now: float | None = None) -> Outcome | None:
        """Return the result `Expired` if the latest start has passed, otherwise None.

        :param now: the current time on the clock of the engine; default: that of this host.
        """
        now = time.monotonic() if now is None else now
        if self.not_after is None or now <= self.not_after:
            return None
        late = f"task {self.task.name!r} expired before it started"
        return Outcome(ft.Failure.from_exception(exceptions.Expired(late)))

    def __repr__(self) -> str:
        return f"<Invocation {self.action} {self.task.name!r}, attempt {self.attempt}>"


@dataclass(slots=True, eq=False)
class Outcome:
    """The result of a call: `value` is the return value or a `Failure`.

    `started` and `ended` are Unix seconds on the clock of `worker`.
    """

    value: Any
    worker: str = running.LOCAL
    started: float | None = None
    ended: float | None = None

    @property
    def failed(self) -> bool:
        return isinstance(self.value, ft.Failure)


#: Called once for each submitted call, from any thread. It must return quickly.
Done = Callable[[Invocation, Outcome], None]


class TaskExecutor(abc.ABC):
    """Runs tasks.

    Each submitted call ends in exactly one call of its `done`, unless `withdraw` returns it first.
    All methods are thread-safe. `start` and `stop` are idempotent.
    """

    #: Whether tasks run in the submitting thread, before `submit` returns.
    immediate: bool = False

    #: Whether calls of an earlier run may still be running, or have results. The engine then
    #: submits them again as `recovered`, with the same attempt number.
    survives_engine: bool = False

    #: Whether the executor knows for certain which calls never started.
    has_ledger: bool = False

    #: Whether the executor delays recovered calls, which it may have started, until `eta`, and ends
    #: calls after `expires`. Otherwise the engine delays them, too, and the executor calls
    #: `Invocation.expired` before it starts a call.
    keeps_times: bool = False

    def for_engine(self) -> TaskExecutor:
        """Return the executor that an engine uses: this one, or a new one for its calls only.

        The engine of a child flow has the same option `executor` as the engine of its parent.
        """
        return self

    @abc.abstractmethod
    def submit(self, invocation: Invocation, done: Done) -> None:
        """Run a call and then call `done(invocation, outcome)` once.

        Exceptions of tasks, or caused by arguments, are results. `submit` does not raise them.
        """

    def submit_many(self, invocations: Iterable[Invocation], done: Done) -> None:
        """Submit several calls in order. An executor may send them together."""
        for invocation in invocations:
            self.submit(invocation, done)

    def withdraw(self) -> list[Invocation]:
        """Return the calls that have not started. Their `done` is never called."""
        return []

    def cancel(self, invocations: Iterable[Invocation]) -> None:  # noqa: B027  (a default)
        """Cancel calls. Return immediately. Idempotent.

        Calls that have not started end with a failure `Cancelled`, and `cancellation.prevented` is
        then True. Running calls are notified (`task.cancelled`), and end with their own result. A
        child process is killed after a grace period.
        """

    def retire(self, invocations: Iterable[Invocation]) -> None:  # noqa: B027  (a default)
        """Note that the results of these calls are stored, so their data may be deleted."""

    def disown(self) -> None:  # noqa: B027  (a default)
        """Forget all submitted calls, because another engine continues them.

        Nothing is withdrawn, acknowledged or deleted. `done` is not called for these calls. `stop`
        must still be called.
        """

    def abandon_detached(self) -> None:  # noqa: B027  (a default)
        """Release calls whose work continues outside of this process (`Task.detached`).

        Their `done` is not called any more. A later run continues them.
        """

    def start(self) -> None:  # noqa: B027  (a default)
        """Acquire the resources that running calls needs."""

    def finish(self) -> None:  # noqa: B027  (a default)
        """Wait for submitted calls that `stop` would end."""

    def stop(self) -> None:  # noqa: B027  (a default)
        """Finish or fail unfinished calls, and release all resources."""

    def execute_task(
        self,
        task: task_module.Task,
        task_uuid: str,
        arguments: Mapping[str, Any],
        progress_callback: EventSink | None = None,
    ) -> futures.Future[tuple[str, Any]]:
        """Execute `task`. Return a future of `(EXECUTED, result or Failure)`."""
        invocation = Invocation(task, EXECUTE, task_uuid, next(_attempts), arguments)
        invocation.events = progress_callback
        return self._as_future(invocation, EXECUTED)

    def revert_task(
        self,
        task: task_module.Task,
        task_uuid: str,
        arguments: Mapping[str, Any],
        result: Any,
        failures: Mapping[str, ft.Failure],
        progress_callback: EventSink | None = None,
    ) -> futures.Future[tuple[str, Any]]:
        """Revert `task`. Return a future of `(REVERTED, result or Failure)`."""
        invocation = Invocation(
            task, REVERT, task_uuid, next(_attempts), arguments, result, failures
        )
        invocation.events = progress_callback
        return self._as_future(invocation, REVERTED)

    def _as_future(self, invocation: Invocation, event: str) -> futures.Future[tuple[str, Any]]:
        future: futures.Future[tuple[str, Any]] = futures.Future()
        future.set_running_or_notify_cancel()

        def done(_: Invocation, outcome: Outcome) -> None:
            future.set_result((event, outcome.value))
            self.retire([invocation])

        self.submit(invocation, done)
        return future


def interrupted(outcome: Outcome) -> bool:
    """Return True if an exception that ends the program ended a call on this host.

    These exceptions are not an `Exception`: `SystemExit`, `KeyboardInterrupt`, exceptions of signal
    handlers and others, but not `CancelledError`, which ends only a coroutine. The call has no
    result and runs again.
    """
    if not isinstance(outcome.value, ft.Failure):
        return False
    error = outcome.value.exception
    if error is None or isinstance(error, Exception):  # None: a worker sent the failure.
        return False
    return type(error).__name__ != "CancelledError"


def raise_interruption(outcome: Outcome) -> None:
    """Raise the exception that interrupted a call, if any."""
    if interrupted(outcome):
        outcome.value.reraise()


def invoke(invocation: Invocation, loop: event_loop.EventLoop | None = None) -> Outcome:
    """Run the hooks and the method of a task in this thread. Exceptions become a `Failure`.

    The post hook always runs. A failure of the method takes precedence over a failure of the post
    hook. `SystemExit` and `KeyboardInterrupt` also become failures; see `raise_interruption`.

    Coroutines run in `loop` (default: the event loop of the process), and this function waits for
    them. If the method is async, its hooks run in the loop too.
    """
    started = time.time()
    task = invocation.task
    context = invocation.context
    if context is None:
        context = contextvars.copy_context()
    if task.async_bodies and invocation.action in task.async_bodies:
        return context.run(_in_loop, ainvoke, invocation, started, loop)
    task.attach(invocation)
    references = invocation.arguments, invocation.result
    try:
        is_plain = running.around is None and running.scope is None
        perform = _perform if is_plain else _perform_around
        value = context.run(perform, task, invocation, loop)
        if invocation.stores_large:
            value = _stored(invocation, value)
        return Outcome(value, running.LOCAL, started, time.time())
    finally:
        invocation.arguments, invocation.result = references
        task.detach()
        if invocation.log is not None:
            invocation.log.close()


async def ainvoke(invocation: Invocation) -> Outcome:
    """Do the same as `invoke` for a task with an async method, in the running event loop."""
    started = time.time()
    task = invocation.task
    _set_current(invocation)
    contexts.isolate()
    task.attach(invocation)
    references = invocation.arguments, invocation.result
    try:
        is_plain = running.around is None and running.async_scope is None
        value = await (_aperform if is_plain else _aperform_around)(task, invocation)
        if invocation.stores_large:
            value = await asyncio.to_thread(_stored, invocation, value)
        return Outcome(value, running.LOCAL, started, time.time())
    finally:
        invocation.arguments, invocation.result = references
        task.detach()
        if invocation.log is not None:
            invocation.log.close()


def _perform(
    task: task_module.Task, invocation: Invocation, loop: event_loop.EventLoop | None
) -> Any:
    _set_current(invocation)
    if _decimal_context(None) is not None:
        contexts.isolate()
    pre_hook, post_hook = _hooks(task, invocation.action)
    pid = forks.current_pid
    try:
        if getattr(pre_hook, "__func__", None) not in _IDLE_HOOKS:
            _waited_for(pre_hook(), loop)
            forks.end_fork(pid)
        if _references.IN_USE and _needs_values(invocation):
            _load_values(invocation)
        if task.transaction is not None:
            value: Any = _in_transaction(task, invocation, loop)
        elif invocation.action == EXECUTE:
            value = task.execute(**invocation.arguments)
        elif calls_revert(task, invocation.result):
            value = task.revert(**_revert_arguments(task, invocation, invocation.result))
        else:
            value = None
        if type(value) is _COROUTINE:  # A plain function returned a coroutine.
            value = _waited_for(value, loop)
    except BaseException as error:
        value = ft.Failure.from_exception(error)
    if forks.current_pid != pid:
        forks.end_fork(pid, value)
    if getattr(post_hook, "__func__", None) not in _IDLE_HOOKS:
        try:
            _waited_for(post_hook(), loop)
        except BaseException as error:
            if not isinstance(value, ft.Failure):
                value = ft.Failure.from_exception(error)
        forks.end_fork(pid, value)
    return value


def _needs_values(invocation: Invocation) -> bool:
    if invocation.action == REVERT and reverts_nothing(type(invocation.task)):
        return False
    values = *invocation.arguments.values(), invocation.result
    return any(map(_payloads.contains_reference, values))


def _load_values(invocation: Invocation) -> None:
    """Load the arguments and the result that are stored out of line.

    :raises PayloadUnavailable: if one is lost or damaged, or cannot be read by this process.
    """
    name, payloads, origin = invocation.task.name, invocation.payloads, invocation.origin
    worker = running.LOCAL if origin is None else origin.worker
    reader = "this process" if worker == running.LOCAL else f"worker {worker}"
    invocation.arguments = {
        argument: _payloads.loaded(
            payloads, value, f"argument {argument!r} of task {name!r}", reader
        )
        for argument, value in invocation.arguments.items()
    }
    result = f"result of task {name!r}"
    invocation.result = _payloads.loaded(payloads, invocation.result, result, reader)


def _stored(invocation: Invocation, value: Any) -> Any:
    """Return a result with references in place of large parts, or a failure."""
    assert invocation.payloads is not None
    origin = invocation.origin
    flow = invocation.flow_uuid if origin is None else origin.flow_uuid
    try:
        return invocation.payloads.store_large(value, "result", flow)
    except Exception as error:  # Encoding a value may raise any exception.
        return ft.Failure.from_exception(error)


def _in_transaction(
    task: task_module.Task, invocation: Invocation, loop: event_loop.EventLoop | None
) -> Any:
    """Call the method of a task in a transaction of its database."""
    executes, pid = invocation.action == EXECUTE, forks.current_pid
    if not executes and reverts_nothing(type(task)):
        return None

    def body(connection: Any, result: Any) -> Any:
        try:
            if executes:
                value: Any = task.execute(connection=connection, **invocation.arguments)
            else:
                arguments = dict(_revert_arguments(task, invocation, result))
                if binding.signature_of(task.revert).takes(CONNECTION):
                    arguments[CONNECTION] = connection
                value = task.revert(**arguments)
            value = _waited_for(value, loop)
        except BaseException as error:
            # The connection belongs to the parent.
            forks.end_fork(pid, ft.Failure.from_exception(error))
            raise
        forks.end_fork(pid, value)
        return value

    # Loaded here, because most tasks need no database.
    running_step = object_names.load("wbengine._transactions.running_step")
    origin = invocation.origin
    step = running_step.Step(
        task.transaction,
        running_step.Key(
            invocation.row or row_key(invocation),
            invocation.flow_uuid if origin is None else origin.flow_uuid,
            task.name,
        ),
        invocation.action,
        invocation.attempt if origin is None else origin.attempt,
        invocation.settled,
        invocation.arguments,
        None if executes else invocation.result,
        getattr(type(task).revert, "of_failed", True),
        invocation.cancellation,
    )
    return running_step.run(step, body)


def row_key(invocation: Invocation) -> str:
    """Return the key of the row of a task with a transaction.

    :raises InvalidState: if the call comes from no engine of this package.
    """
    if not invocation.uuid:
        raise exceptions.InvalidState(
            f"Task {invocation.task.name!r} has a transaction, but its caller has sent no key for"
            " its row: only engines of wbengine whose code has the transaction too can run it"
        )
    index = invocation.index
    return invocation.uuid if index < 0 else f"{invocation.uuid}[{index}]"


def _perform_around(
    task: task_module.Task, invocation: Invocation, loop: event_loop.EventLoop | None
) -> Any:
    _set_current(invocation)  # for log lines of tracers
    if running.around is None:
        return running.in_scope(_perform, task, invocation, loop)
    with running.around(invocation):
        if running.scope is None:  # saves a call for each task
            return _perform(task, invocation, loop)
        return running.in_scope(_perform, task, invocation, loop)


async def _aperform_around(task: task_module.Task, invocation: Invocation) -> Any:
    around, scope = running.around, running.async_scope
    with contextlib.nullcontext() if around is None else around(invocation):
        if scope is None:
            return await _aperform(task, invocation)
        async with scope():
            return await _aperform(task, invocation)


async def _aperform(task: task_module.Task, invocation: Invocation) -> Any:
    pre_hook, post_hook = _hooks(task, invocation.action)
    pid = forks.current_pid
    try:
        await _settled(pre_hook())
        forks.end_fork(pid)
        if _references.IN_USE and _needs_values(invocation):
            await asyncio.to_thread(_load_values, invocation)
        if invocation.action == EXECUTE:
            value: Any = await _settled(task.execute(**invocation.arguments))
        elif calls_revert(task, invocation.result):
            arguments = _revert_arguments(task, invocation, invocation.result)
            value = await _settled(task.revert(**arguments))
        else:
            value = None
    except BaseException as error:
        value = ft.Failure.from_exception(running.translate_cancellation(error, invocation))
    forks.end_fork(pid, value)
    try:
        await _settled(post_hook())
    except BaseException as error:
        if not isinstance(value, ft.Failure):
            value = ft.Failure.from_exception(error)
    forks.end_fork(pid, value)
    return value


def _hooks(task: task_module.Task, action: Action) -> tuple[Callable[[], Any], Callable[[], Any]]:
    if action == EXECUTE:
        return task.pre_execute, task.post_execute
    return task.pre_revert, task.post_revert


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def calls_revert(task: task_module.Task, result: Any) -> bool:
    """Return True if `revert` is called after this result.

    The revert of a function task is called after failures only if it was registered for them, or
    if the execution may have succeeded.
    """
    return (
        not isinstance(result, ft.Failure)
        or getattr(type(task).revert, "of_failed", True)
        or result.check(*_UNKNOWN_EFFECT) is not None
    )


def _revert_arguments(
    task: task_module.Task, invocation: Invocation, result: Any
) -> Mapping[str, Any]:
    if getattr(task.revert, "__func__", None) is Atom.revert:
        # `revert` has no effect, and copying all failures of a large flow is slow.
        return NO_ARGUMENTS
    arguments = dict(invocation.arguments)
    accepts = task.revert_accepts
    if accepts is None or REVERT_RESULT in accepts:
        arguments[REVERT_RESULT] = result
    if accepts is None or REVERT_FLOW_FAILURES in accepts:
        arguments[REVERT_FLOW_FAILURES] = dict(invocation.failures)
    return arguments


def reverts_nothing(task_cls: type[Atom]) -> bool:
    """Return True if reverting tasks of this class has no effect: no `revert` and no hooks."""
    # The attribute of a function task is a decorator with the registered function, or None.
    revert = getattr(task_cls.revert, "body", task_cls.revert)
    return (
        (revert is Atom.revert or revert is None)
        and task_cls.pre_revert is Atom.pre_revert
        and task_cls.post_revert is Atom.post_revert
    )


def _in_loop(
    run: Callable[[Invocation], Coroutine[Any, Any, Outcome]],
    invocation: Invocation,
    started: float,
    loop: event_loop.EventLoop | None,
) -> Outcome:
    try:
        outcome: Any = _loop(loop).run(
            run,
            invocation,
            cancellation=invocation.cancellation,
            always_begins=invocation.recovered,
        )
    except BaseException as error:
        outcome = ft.Failure.from_exception(error)
    return (
        outcome
        if isinstance(outcome, Outcome)
        else Outcome(outcome, running.LOCAL, started, time.time())
    )


def _waited_for(value: Any, loop: event_loop.EventLoop | None) -> Any:
    return _loop(loop).wait_for(value) if type(value) is _COROUTINE else value


def _loop(loop: event_loop.EventLoop | None) -> event_loop.EventLoop:
    if loop is not None:
        return loop
    # Imported here, because plain tasks need no event loop.
    from wbengine._concurrency import event_loop

    return event_loop.of_process()
