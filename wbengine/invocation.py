"""One call of one atom: what is asked of an executor, and what it answers.

This module is the narrow waist of the engine.  Above it, the core decides *what* runs next; below
it, executors decide *where*: in this thread, in a pool, or on a remote worker.  They meet in one
method, `TaskExecutor.submit`.
"""

from __future__ import annotations

import abc
import hashlib
import inspect
import itertools
import time
import types
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from wbengine import exceptions, running, task_logs
from wbengine.atom import REVERT_FLOW_FAILURES, REVERT_RESULT, Atom
from wbengine.concurrency.cancellation import Cancellation
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import task as task_module
    from wbengine.concurrency import event_loop

Action = Literal["execute", "revert"]
EXECUTE: Final = "execute"
REVERT: Final = "revert"

#: Names of the event in the (event, result) pairs that `execute_task` and `revert_task` resolve to.
EXECUTED: Final = "executed"
REVERTED: Final = "reverted"

#: `(event_type, details)`: what a running task tells the outside while it runs.
EventSink = Callable[[str, dict[str, Any]], None]


class _Nothing(dict[str, Any]):
    """An empty dict that may be a default: many share it, and none changes it."""

    __hash__ = object.__hash__  # type: ignore[assignment]


NO_ARGUMENTS: Final[Mapping[str, Any]] = _Nothing()
NO_FAILURES: Final[Mapping[str, ft.Failure]] = _Nothing()

_COROUTINE: Final = types.CoroutineType

# The hooks that do nothing: they are not even called.
_IDLE_HOOKS: Final = frozenset(
    {Atom.pre_execute, Atom.post_execute, Atom.pre_revert, Atom.post_revert}
)

_enter: Final = running.CURRENT.set
_leave: Final = running.CURRENT.reset

# Whoever calls `execute_task` by hand keeps no count of attempts; no two of theirs may be the same.
_attempts = itertools.count(1)

#: The `worker` of everything that ran in the engine's own process.
LOCAL: Final = "local"

_NAMESPACE: Final = bytes.fromhex("8f3e6c525d0b4d6b9c550b8ee3a4a7c1")


def request_id(uuid: str, action: str, attempt: int, index: int = -1, resumed: int = 0) -> str:
    """The same for whatever is the same run of the same thing, and for nothing else."""
    name = f"{uuid}|{action}|{attempt}"
    if index >= 0:
        name = f"{name}|{index}"
        if resumed:
            name = f"{name}|{resumed}"
    # A uuid of version 5, as `uuid.uuid5` makes it, in a third of the time.
    made = hashlib.sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(made[16], 16) & 3]
    return f"{made[:8]}-{made[8:12]}-5{made[13:16]}-{variant}{made[17:20]}-{made[20:32]}"


@dataclass(slots=True, eq=False, repr=False)
class Invocation:
    """A request to execute or revert one task.

    `uuid` is the atom's; `attempt` is its number for the life of the flow detail (it only rises).
    `result` and `failures` are for reverts.  `events` receives what the task tells while it runs,
    in the order told, from any thread; its `began(worker)`, if it has that, is told when it begins.
    `node` is for whoever made the invocation; executors carry it back.  `ticket` is their own mark.

    For one item of a `Map`, `index` is the item's number (else -1), and `resumed` how often the
    attempt had been interrupted: what was sent before may still be under way somewhere.

    `recovered`: an earlier run, which did not come to its end, may have sent it already; whoever
    runs it has to find out.  What has to be published is published under `epoch`: no number is used
    by two runs, and a later one's is higher.

    `cancellation`: what it is cancelled by, and told of that where it runs; one that is cancelled
    is not to start any more.  `local`: it must run in the engine's own process.  `origin`: as what
    it is known to those who sent it here.

    `captures`: what the task logs is told as `events`, where the process does `task_logs.capture`;
    `log` has it meanwhile.

    `not_before` and `not_after`: between which moments it is to start, on this host's monotonic
    clock; None: nobody looked yet, and at any time.
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
    resumed: int = 0
    epoch: int = 1
    recovered: bool = False
    cancellation: Cancellation = field(default_factory=Cancellation)
    local: bool = False
    not_before: float | None = None
    not_after: float | None = None
    ticket: Any = None
    origin: running.Request | None = None
    captures: bool = False
    log: task_logs.TaskLog | None = None

    def expired(self) -> Outcome | None:
        """What it comes to if its time to start is over."""
        if self.not_after is None or time.monotonic() <= self.not_after:
            return None
        late = f"task {self.task.name!r} was not started in the time that it had for that"
        return Outcome(ft.Failure.from_exception(exceptions.Expired(late)))

    def __repr__(self) -> str:
        return f"<Invocation {self.action} {self.task.name!r}, attempt {self.attempt}>"


@dataclass(slots=True, eq=False)
class Outcome:
    """What became of an invocation: `value` is the result, or the `Failure` that stands for it.

    `started` and `ended` are unix seconds on the clock of whoever ran it (`worker`).
    """

    value: Any
    worker: str = LOCAL
    started: float | None = None
    ended: float | None = None

    @property
    def failed(self) -> bool:
        return isinstance(self.value, ft.Failure)


#: Called exactly once per submitted invocation, from any thread; must return at once.
Done = Callable[[Invocation, Outcome], None]


class TaskExecutor(abc.ABC):
    """Where tasks run.

    Every submitted invocation ends in exactly one call of its `done`, whatever the task does,
    unless `withdraw` handed it back first.  All methods may be called from any thread; `start` and
    `stop` are idempotent.
    """

    #: Whether tasks run in the thread that submits them, before `submit` returns.
    immediate: bool = False

    #: Whether what an earlier run submitted may still be under way, or have ended, somewhere: then
    #: it is submitted again as `recovered`, under the number of its attempt.
    survives_engine: bool = False

    #: And whether it can tell for certain what was never started.
    has_ledger: bool = False

    #: Whether it holds a call until the task's `eta`, and ends it after its `expires`; else that is
    #: done by the engine, and the executor asks `Invocation.expired` before it starts a call.
    keeps_times: bool = False

    @abc.abstractmethod
    def submit(self, invocation: Invocation, done: Done) -> None:
        """Run `invocation` some time, and then call `done(invocation, outcome)` once.

        Never raises for what a task or its arguments do: that is an outcome.
        """

    def submit_many(self, invocations: Iterable[Invocation], done: Done) -> None:
        """Submit a turn's invocations, in order; executors that can write them at once do."""
        for invocation in invocations:
            self.submit(invocation, done)

    def withdraw(self) -> list[Invocation]:
        """Take back what has not been started; those invocations never reach their `done`."""
        return []

    def cancel(self, invocations: Iterable[Invocation]) -> None:  # noqa: B027  (a default)
        """Let these come to an end soon; returns at once.  Idempotent.

        What has not started ends in its `done` with a failure of `Cancelled`, and does not start.
        What runs is told (`task.cancelled`), and its process killed after a grace time where it
        runs in one of its own; however it ends is its outcome.  What ended is left alone.
        """

    def retire(self, invocations: Iterable[Invocation]) -> None:  # noqa: B027  (a default)
        """Be told that the outcomes of `invocations` are saved: nothing need be kept of them."""

    def disown(self) -> None:  # noqa: B027  (a default)
        """Forget everything that was submitted: another engine goes on with it, here or elsewhere.

        Nothing that both can see is touched: nothing is withdrawn, acknowledged or removed.  No
        `done` is called any more.  `stop` still has to be called.
        """

    def abandon_detached(self) -> None:  # noqa: B027  (a default)
        """Let go of what goes on outside without this process (`Task.detached`), as far as that is
        possible: no `done` is called of it any more, and a later run goes on with it.
        """

    def start(self) -> None:  # noqa: B027  (a default)
        """Acquire what running needs."""

    def finish(self) -> None:  # noqa: B027  (a default)
        """Wait for the end of what was submitted, if `stop` would not let it finish."""

    def stop(self) -> None:  # noqa: B027  (a default)
        """Give it back; what was submitted and not finished is failed or finished first."""

    def execute_task(
        self,
        task: task_module.Task,
        task_uuid: str,
        arguments: Mapping[str, Any],
        progress_callback: EventSink | None = None,
    ) -> futures.Future[tuple[str, Any]]:
        """Schedule the execution of `task`; the future holds `(EXECUTED, result or Failure)`."""
        made = Invocation(task, EXECUTE, task_uuid, next(_attempts), arguments)
        made.events = progress_callback
        return self._as_future(made, EXECUTED)

    def revert_task(
        self,
        task: task_module.Task,
        task_uuid: str,
        arguments: Mapping[str, Any],
        result: Any,
        failures: Mapping[str, ft.Failure],
        progress_callback: EventSink | None = None,
    ) -> futures.Future[tuple[str, Any]]:
        """Schedule the reversion of `task`; the future holds `(REVERTED, result or Failure)`."""
        made = Invocation(task, REVERT, task_uuid, next(_attempts), arguments, result, failures)
        made.events = progress_callback
        return self._as_future(made, REVERTED)

    def _as_future(self, invocation: Invocation, event: str) -> futures.Future[tuple[str, Any]]:
        future: futures.Future[tuple[str, Any]] = futures.Future()
        future.set_running_or_notify_cancel()

        def done(_: Invocation, outcome: Outcome) -> None:
            future.set_result((event, outcome.value))
            self.retire([invocation])

        self.submit(invocation, done)
        return future


def interrupted(outcome: Outcome) -> bool:
    """Whether a call on this host was ended by what is to end the program, and not the task alone.

    That is `SystemExit`, Ctrl-C, what the handler of a signal raises, and whatever else is no
    `Exception` (`CancelledError` ends a coroutine, no program).  Such a call has not failed: it has
    no outcome, and is to be run again.
    """
    if not isinstance(outcome.value, ft.Failure):
        return False
    error = outcome.value.exception
    if error is None or isinstance(error, Exception):  # None: it comes from a worker
        return False
    return type(error).__name__ != "CancelledError"


def raise_interruption(outcome: Outcome) -> None:
    """Raise what ended a call if it was `interrupted`.

    :raises BaseException: what ended it.
    """
    if interrupted(outcome):
        outcome.value.reraise()


def invoke(invocation: Invocation, loop: event_loop.EventLoop | None = None) -> Outcome:
    """Call the task's hooks and body here and now; whatever it raises becomes a `Failure`.

    Hooks run in the order pre, body, post; `post_*` runs whatever happened before it.  An exception
    of any of them (`SystemExit` and `KeyboardInterrupt` included; see `raise_interruption`) is the
    outcome; the body's own failure wins over that of the post hook.

    What is an `async def` runs in `loop` (without one: in that of the process), and is waited for
    here: an async body together with its hooks; of a plain body only the hooks that are async.
    """
    started = time.time()
    task = invocation.task
    if task.async_bodies and invocation.action in task.async_bodies:
        return _in_loop(ainvoke, invocation, started, loop)
    before = _enter(invocation)
    task.attach(invocation)
    try:
        if running.around is None:
            return Outcome(_perform(task, invocation, loop), LOCAL, started, time.time())
        with running.around(invocation):
            return Outcome(_perform(task, invocation, loop), LOCAL, started, time.time())
    finally:
        task.detach()
        _leave(before)
        if invocation.log is not None:
            invocation.log.close()


async def ainvoke(invocation: Invocation) -> Outcome:
    """`invoke`, for a task with an async body: everything is called in the loop that runs this."""
    started = time.time()
    task = invocation.task
    _enter(invocation)  # it has a context of its own
    task.attach(invocation)
    try:
        if running.around is None:
            return Outcome(await _aperform(task, invocation), LOCAL, started, time.time())
        with running.around(invocation):
            return Outcome(await _aperform(task, invocation), LOCAL, started, time.time())
    finally:
        task.detach()
        if invocation.log is not None:
            invocation.log.close()


def _perform(
    task: task_module.Task, invocation: Invocation, loop: event_loop.EventLoop | None
) -> Any:
    """Hooks and body in this thread; what of them is async is waited for."""
    before, after = _hooks(task, invocation.action)
    try:
        if getattr(before, "__func__", None) not in _IDLE_HOOKS:
            _waited_for(before(), loop)
        if invocation.action == EXECUTE:
            value: Any = task.execute(**invocation.arguments)
        elif _undoes(task, invocation.result):
            value = task.revert(**_revert_arguments(task, invocation))
        else:
            value = None
        if type(value) is _COROUTINE:  # the body did not look like it
            value = _waited_for(value, loop)
    except BaseException as error:
        value = ft.Failure.from_exception(error)
    if getattr(after, "__func__", None) not in _IDLE_HOOKS:
        try:
            _waited_for(after(), loop)
        except BaseException as error:
            if not isinstance(value, ft.Failure):
                value = ft.Failure.from_exception(error)
    return value


async def _aperform(task: task_module.Task, invocation: Invocation) -> Any:
    """Hooks and body in this loop, all of them awaited as far as they are async."""
    before, after = _hooks(task, invocation.action)
    try:
        await _settled(before())
        if invocation.action == EXECUTE:
            value: Any = await _settled(task.execute(**invocation.arguments))
        elif _undoes(task, invocation.result):
            value = await _settled(task.revert(**_revert_arguments(task, invocation)))
        else:
            value = None
    except BaseException as error:
        value = ft.Failure.from_exception(running.meant(error, invocation))
    try:
        await _settled(after())
    except BaseException as error:
        if not isinstance(value, ft.Failure):
            value = ft.Failure.from_exception(error)
    return value


def _hooks(task: task_module.Task, action: Action) -> tuple[Callable[[], Any], Callable[[], Any]]:
    if action == EXECUTE:
        return task.pre_execute, task.post_execute
    return task.pre_revert, task.post_revert


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _undoes(task: task_module.Task, result: Any) -> bool:
    """Whether `revert` is called after an execution that came to `result`.

    That of a function undoes what was done, and no failure, unless it asks for those.
    """
    return not isinstance(result, ft.Failure) or getattr(type(task).revert, "of_failed", True)


def _revert_arguments(task: task_module.Task, invocation: Invocation) -> Mapping[str, Any]:
    if getattr(task.revert, "__func__", None) is Atom.revert:
        return NO_ARGUMENTS  # It does nothing, and all failures of a big flow are many.
    arguments = dict(invocation.arguments)
    accepts = task.revert_accepts
    if accepts is None or REVERT_RESULT in accepts:
        arguments[REVERT_RESULT] = invocation.result
    if accepts is None or REVERT_FLOW_FAILURES in accepts:
        arguments[REVERT_FLOW_FAILURES] = dict(invocation.failures)
    return arguments


def reverts_nothing(task_cls: type[Atom]) -> bool:
    """Whether reverting tasks of this class does nothing: they have neither body nor hooks."""
    return (
        task_cls.revert is Atom.revert
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
        found: Any = _loop(loop).run(
            run,
            invocation,
            cancellation=invocation.cancellation,
            always_begins=invocation.recovered,
        )
    except BaseException as error:
        found = ft.Failure.from_exception(error)
    return found if isinstance(found, Outcome) else Outcome(found, LOCAL, started, time.time())


def _waited_for(value: Any, loop: event_loop.EventLoop | None) -> Any:
    return _loop(loop).wait_for(value) if type(value) is _COROUTINE else value


def _loop(loop: event_loop.EventLoop | None) -> event_loop.EventLoop:
    if loop is not None:
        return loop
    # Not on top: what runs plain tasks only needs no event loop.
    from wbengine.concurrency import event_loop

    return event_loop.of_process()
