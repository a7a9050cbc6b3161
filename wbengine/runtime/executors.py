"""Where tasks run on this host: in the engine's thread, in threads, in processes."""

from __future__ import annotations

import abc
import functools
import os
import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any, ClassVar, Final

from wbengine import _names, exceptions, running, task_logs
from wbengine import invocation as calls
from wbengine import task as task_module
from wbengine.concurrency import child_process, event_loop, interrupts, limits, pools, process_pool
from wbengine.runtime import strict as strictness
from wbengine.types import failure as ft

__all__ = [
    "CANCEL_GRACE",
    "FutureProcessTaskExecutor",
    "LocalTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]

Invoke = Callable[[calls.Invocation, event_loop.EventLoop], calls.Outcome]

#: What a child sends back: the value (or Failure), when it started, and when it ended.
_Answer = tuple[Any, float | None, float | None]

#: Seconds that a cancelled task in a process of its own has to end before that is killed.
CANCEL_GRACE: Final = 10.0


class LocalTaskExecutor(calls.TaskExecutor):
    """What the executors of this host share.

    `strict`: refuse the arguments and results that could not travel to a worker.  `limit`: that of
    tasks which say nothing of their own (`Task.timelimit`).
    """

    def __init__(self, *, strict: bool = False, limit: limits.TimeLimit = limits.UNLIMITED) -> None:
        self._strict = strict
        self._limit = limit

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        refused = strictness.refused(invocation) if self._strict else None
        if refused is not None:
            done(invocation, refused)
            return
        if invocation.action == calls.REVERT and strictness.never_left(invocation.result):
            # What could not be sent then cannot be sent now, and has nothing to undo.
            done(invocation, calls.Outcome(None))
            return
        try:
            self._begin(invocation, done)
        except Exception as error:
            done(invocation, calls.Outcome(ft.Failure.from_exception(error)))

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        for invocation in invocations:
            invocation.cancellation.cancel()

    def disown(self) -> None:
        self.withdraw()  # nobody else sees what waits here

    @abc.abstractmethod
    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        """Have it run, and end when it is cancelled; or raise why not."""


def _limit_of(invocation: calls.Invocation, default: limits.TimeLimit) -> limits.TimeLimit:
    """How long a call may take.

    :raises TypeError, ValueError: the task's `timelimit` is none.
    """
    given = invocation.task.timelimit
    if given is None:
        return default
    return limits.read(given, f"the timelimit of task {invocation.task.name!r}")


class SerialTaskExecutor(calls.TaskExecutor):
    """Runs every task at once, in the thread that submits it, in the order submitted.

    Async bodies run in an event loop of its own, one after the other like all others.

    What interrupts a task (`invocation.raise_interruption`) is not its outcome: it leaves `submit`.

    When a limit is over, its exception (`SoftTimeLimitExceeded`, then `TimeLimitExceeded`) is
    raised in the task, between two steps of its Python code.  Nothing else can end it here.
    """

    #: Tasks run in the engine's process: their own notifiers have heard their events already.
    in_process: ClassVar[bool] = True
    immediate: bool = True

    def __init__(self, *, strict: bool = False, limit: limits.TimeLimit = limits.UNLIMITED) -> None:
        self._loop = event_loop.EventLoop()
        self._strict = strict
        self._limit = limit

    def stop(self) -> None:
        # Another for the next run: an interruption may end the waiting for this one.
        loop, self._loop = self._loop, event_loop.EventLoop()
        loop.stop()

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        for invocation in invocations:
            invocation.cancellation.cancel()

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        if invocation.cancellation.cancelled and not invocation.recovered:  # just before
            refusal = exceptions.Cancelled(f"Task {invocation.task.name!r} was cancelled")
            done(invocation, calls.Outcome(ft.Failure.from_exception(refusal)))
            return
        if invocation.not_after is not None and (late := invocation.expired()) is not None:
            done(invocation, late)
            return
        _tell_begin(invocation, written=False)  # nobody writes anything while it runs
        invoke: Invoke = calls.invoke
        if self._strict:
            invoke = strictness.invoke
            refused = strictness.refused(invocation)
            if refused is not None:
                done(invocation, refused)
                return
        if self._limit is limits.UNLIMITED and invocation.task.timelimit is None:
            outcome = invoke(invocation, self._loop)
        else:
            outcome = _outcome_of(self._limited(invoke, invocation))
        if isinstance(outcome.value, ft.Failure):  # without a call for each task that succeeds
            calls.raise_interruption(outcome)
        done(invocation, outcome)

    def _limited(self, invoke: Invoke, invocation: calls.Invocation) -> Any:
        try:
            limit = _limit_of(invocation, self._limit)
        except (TypeError, ValueError) as error:
            return ft.Failure.from_exception(error)
        if limit.hard is not None:
            invocation.cancellation.deadline = time.time() + limit.hard
        return interrupts.limited(limit, invoke, (invocation, self._loop))


class ThreadTaskExecutor(LocalTaskExecutor):
    """Runs tasks in a pool of threads: its own, or any `concurrent.futures.Executor` of threads.

    An own pool has `max_workers` threads (default: 4 more than processors, at most 32), started
    when needed.  A given `executor` is used as it is and never shut down.

    Async bodies need no thread of the pool: they all run, as many as there are, in one event loop.
    It is the executor's own also when the pool is given, and ends with `stop`.

    Limits are kept as `pools.ThreadPool`, `pools.ExternalPool` and `EventLoop` say.
    """

    in_process: ClassVar[bool] = True

    def __init__(
        self,
        executor: futures.Executor | None = None,
        max_workers: int | None = None,
        *,
        strict: bool = False,
        limit: limits.TimeLimit = limits.UNLIMITED,
    ) -> None:
        super().__init__(strict=strict, limit=limit)
        self._given = executor is not None
        self._max_workers = max_workers
        self._pool: pools.ThreadPool | pools.ExternalPool | None = None
        if executor is not None:
            self._pool = pools.ExternalPool(executor)
        self._loop = event_loop.EventLoop()
        self._invoke = strictness.invoke if strict else calls.invoke
        self._ainvoke = strictness.ainvoke if strict else calls.ainvoke

    def start(self) -> None:
        if self._pool is None:
            size = self._max_workers
            self._pool = pools.ThreadPool(size if size is not None else _default_threads())

    def stop(self) -> None:
        pool = self._pool
        if pool is not None:
            if not self._given:
                self._pool = None
            pool.stop()
        # After the pool: plain bodies may have hooks that are async.  Another one for the next run:
        # an interruption may end the waiting for this one.
        loop, self._loop = self._loop, event_loop.EventLoop()
        loop.stop()

    def withdraw(self) -> list[calls.Invocation]:
        taken = [call.args[0] for call in self._loop.withdraw()]
        if self._pool is not None:
            taken.extend(call.args[1] for call in self._pool.withdraw())
        return taken

    def disown(self) -> None:
        super().disown()
        self.abandon_detached()

    def abandon_detached(self) -> None:
        self._loop.abandon(_is_detached)

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        if pool is None:
            raise RuntimeError("the executor was not started")
        limit = _limit_of(invocation, self._limit)
        task, tell = invocation.task, functools.partial(_report, invocation, done)
        if task.async_bodies and invocation.action in task.async_bodies:
            _tell_begin(invocation)  # none of these waits for others
            self._loop.submit(
                self._ainvoke,
                (invocation,),
                tell,
                limit,
                task.name,
                cancellation=invocation.cancellation,
                always_begins=invocation.recovered,
            )
            return
        pool.submit(
            _call_here,
            (self._invoke, invocation, self._loop),
            tell,
            None,
            limit,
            task.name,
            cancellation=invocation.cancellation,
            always_begins=invocation.recovered,
        )


def _is_detached(call: event_loop.LoopCall) -> bool:
    invocation: calls.Invocation = call.args[0]
    return invocation.task.detached and invocation.action == calls.EXECUTE


def _default_threads() -> int:
    """How many threads a pool has that was not told."""
    return min(32, (os.cpu_count() or 1) + 4)


def _call_here(
    invoke: Invoke,
    invocation: calls.Invocation,
    loop: event_loop.EventLoop,
    emit: pools.PoolCall,
) -> calls.Outcome:
    late = None if invocation.not_after is None else invocation.expired()
    if late is not None:
        return late
    _tell_begin(invocation)
    return invoke(invocation, loop)


def _tell_begin(invocation: calls.Invocation, *, written: bool = True) -> None:
    """Let those know who look at the store: soon, or (not `written`) with what is told next."""
    began = getattr(invocation.events, "began", None)
    if began is not None:
        began(calls.LOCAL, written)


def _report(invocation: calls.Invocation, done: calls.Done, value: Any) -> None:
    """Tell the outcome of a call: that, or what stands for it."""
    done(invocation, _outcome_of(value))


def _outcome_of(value: Any) -> calls.Outcome:
    """The outcome that a call gave, or of what stands for it."""
    return value if isinstance(value, calls.Outcome) else calls.Outcome(value)


class _RemoteTaskExecutor(LocalTaskExecutor):
    """What executors share whose tasks run in other processes."""

    in_process: ClassVar[bool] = False

    _pool: process_pool.ProcessPool | pools.ExternalPool | None

    def withdraw(self) -> list[calls.Invocation]:
        if self._pool is None:
            return []
        told: list[Any] = [call.done for call in self._pool.withdraw()]
        return [done.invocation for done in told]


class FutureProcessTaskExecutor(_RemoteTaskExecutor):
    """Runs tasks in a given `concurrent.futures.ProcessPoolExecutor`, which is never shut down.

    Tasks, arguments and results are pickled.  Such a pool has no way back but the result: what a
    task tells while it runs is lost, and it does not hear that it was cancelled
    (`ProcessTaskExecutor` can do both).  Its processes cannot be ended one by one: when a limit is
    over, its exception is raised in the task, and no more.  Async bodies run in an event loop of
    their process, one at a time.
    """

    def __init__(
        self,
        executor: futures.Executor,
        *,
        strict: bool = False,
        limit: limits.TimeLimit = limits.UNLIMITED,
    ) -> None:
        super().__init__(strict=strict, limit=limit)
        self._pool: pools.ExternalPool = pools.ExternalPool(executor, remote=True)

    def stop(self) -> None:
        self._pool.stop()

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        data = _pickled_call(self._strict, _limit_of(invocation, self._limit), invocation)
        completion = _Completion(invocation, done)
        fn, args = _sent(invocation, (_call_pickled, (data,)))
        name, cancellation = invocation.task.name, invocation.cancellation
        self._pool.submit(fn, args, completion, name=name, cancellation=cancellation)


class ProcessTaskExecutor(_RemoteTaskExecutor):
    """Runs tasks in `max_workers` child processes (default: one per processor).

    Tasks are pickled without their listeners; what they tell while they run comes back and reaches
    `Invocation.events` here.  What cannot be pickled, and a child that dies, is a failure of that
    task alone.  Async bodies run in an event loop of their child, one at a time.

    Limits are kept as `ProcessPool` says; a cancelled task that runs on for `grace` seconds is
    killed (None: never).
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        strict: bool = False,
        limit: limits.TimeLimit = limits.UNLIMITED,
        grace: float | None = CANCEL_GRACE,
    ) -> None:
        super().__init__(strict=strict, limit=limit)
        self._grace = grace
        self._size = max_workers if max_workers is not None else _pool_size()
        self._pool = None

    def start(self) -> None:
        if self._pool is None:
            process_pool.ProcessPool.check()
            self._pool = process_pool.ProcessPool(self._size)

    def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        if pool is None:
            raise RuntimeError("the executor was not started")
        limit = _limit_of(invocation, self._limit)
        fn, args = _sent(invocation, (_call, (self._strict, *_portable(invocation))))
        pool.submit(
            fn,
            args,
            _Completion(invocation, done),
            invocation.events,
            limit,
            invocation.task.name,
            cancellation=invocation.cancellation,
            grace=self._grace,
            always_begins=invocation.recovered,
        )


class _Completion:
    """Turns the value a pool gives for one call into the outcome of its invocation."""

    __slots__ = ("_done", "invocation")

    def __init__(self, invocation: calls.Invocation, done: calls.Done) -> None:
        self.invocation = invocation
        self._done = done

    def __call__(self, value: Any) -> None:
        if isinstance(value, bytes):
            value = pickle.loads(value)
        if isinstance(value, ft.Failure):
            outcome = calls.Outcome(_named(value, self.invocation))
        else:
            answer, started, ended = value
            if isinstance(answer, ft.Failure):
                answer = _with_interruption(answer)
            outcome = calls.Outcome(answer, calls.LOCAL, started, ended)
        self._done(self.invocation, outcome)


def _with_interruption(failure: ft.Failure) -> ft.Failure:
    """What is to end the program ends it here, too, although exceptions stay in their process."""
    kind: Any = failure.check(KeyboardInterrupt, SystemExit)
    return failure if kind is None else ft.Failure.from_exception(kind(*failure.exception_args))


def _pool_size() -> int:
    """How many processes are worth having here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sent(invocation: calls.Invocation, call: running.Call) -> running.Call:
    """The call, with what whoever traces has taken along."""
    if running.sending is None:
        return call
    return running.sending((invocation.uuid, invocation.attempt), call)


def _portable(invocation: calls.Invocation) -> tuple[Any, ...]:
    return (
        invocation.task.copy(retain_listeners=False),
        invocation.action,
        invocation.uuid,
        invocation.attempt,
        dict(invocation.arguments),
        invocation.result,
        dict(invocation.failures),
        (
            invocation.flow_uuid,
            invocation.index,
            invocation.resumed,
            invocation.epoch,
            invocation.recovered,
            invocation.captures,
        ),
        invocation.not_after,
    )


def _call(
    strict: bool,
    task: task_module.Task,
    action: calls.Action,
    uuid: str,
    attempt: int,
    arguments: Mapping[str, Any],
    result: Any,
    failures: Mapping[str, ft.Failure],
    origin: tuple[str, int, int, int, bool, bool],
    not_after: float | None,
    emit: Any,
) -> _Answer:
    """Run one task in a child."""
    call = calls.Invocation(task, action, uuid, attempt, arguments, result, failures, emit)
    call.flow_uuid, call.index, call.resumed, call.epoch, call.recovered, call.captures = origin
    call.not_after = not_after
    if emit is None:
        call.captures = False
    else:
        call.cancellation = emit.cancellation
    if call.captures:
        task_logs.capture()
    late = None if not_after is None else call.expired()
    if late is not None:
        return late.value, None, None
    outcome = strictness.invoke(call) if strict else calls.invoke(call)
    return outcome.value, outcome.started, outcome.ended


def _pickled_call(strict: bool, limit: limits.TimeLimit, invocation: calls.Invocation) -> bytes:
    try:
        return pickle.dumps((limit, strict, *_portable(invocation)))
    except Exception as error:
        raise exceptions.NotEncodable(
            f"Task {invocation.task.name!r} and its arguments cannot be sent to a process: {error}",
            path="call",
        ) from error


def _call_pickled(data: bytes, emit: None) -> bytes:
    limit, *arguments = pickle.loads(data)
    name = arguments[1].name
    call: Any = functools.partial(_call, *arguments)
    answer: Any
    if limit == limits.UNLIMITED:
        answer = call(emit)
    else:
        interrupts.handle_signal()
        answer = interrupts.limited(limit, call, (emit,))
        if isinstance(answer, ft.Failure):
            answer = answer, None, None
    try:
        return pickle.dumps(answer)
    except Exception as error:
        refusal = exceptions.NotEncodable(
            f"The result of task {name!r} cannot be sent back from its process: {error}"
        )
        return pickle.dumps((ft.Failure.from_exception(refusal), *answer[1:]))


def _named(failure: ft.Failure, invocation: calls.Invocation) -> ft.Failure:
    """Say which task, and which of its arguments, a refusal of the pool is about."""
    error = failure.exception
    if not isinstance(error, exceptions.NotEncodable):
        return failure
    given = invocation.arguments.items()
    odd = [(name, value) for name, value in given if not child_process.pickles(value)]
    path, kind = error.path, error.type_name
    if odd:
        path, kind = f"arguments[{odd[0][0]!r}]", _names.dotted(type(odd[0][1]))
    text = f"Task {invocation.task.name!r}: {f'{path}: ' if odd else ''}{error}"
    refusal = exceptions.NotEncodable(text, cause=error, path=path, type_name=kind)
    return ft.Failure.from_exception(refusal)
