"""Executors for tasks on this host: in the thread of the engine, in threads, in processes."""

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
from wbengine.concurrency import (
    child_process,
    event_loop,
    interrupts,
    process_pool,
    thread_pools,
    time_limits,
)
from wbengine.runtime import strict as strictness
from wbengine.types import failure as ft

__all__ = [
    "CANCEL_GRACE_SECONDS",
    "FutureProcessTaskExecutor",
    "LocalTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]

Invoke = Callable[[calls.Invocation, event_loop.EventLoop], calls.Outcome]

#: The value (or Failure) that a child returns, with its start and end times.
_TimedResult = tuple[Any, float | None, float | None]

#: Seconds that a cancelled task in a process may still run before the process is killed.
CANCEL_GRACE_SECONDS: Final = 10.0


class LocalTaskExecutor(calls.TaskExecutor):
    """The common part of executors on this host.

    :param strict: refuse arguments and results that could not be sent to a worker.
    :param limit: time limit of tasks without a `timelimit`.
    """

    def __init__(
        self, *, strict: bool = False, limit: time_limits.TimeLimit = time_limits.UNLIMITED
    ) -> None:
        self._strict = strict
        self._limit = limit

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        refusal_outcome = strictness.refused(invocation) if self._strict else None
        if refusal_outcome is not None:
            done(invocation, refusal_outcome)
            return
        if invocation.action == calls.REVERT and strictness.was_not_sent(invocation.result):
            # The result cannot be sent, as its failure says, and there is nothing to revert.
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
        self.withdraw()  # no other process can see the queued calls

    @abc.abstractmethod
    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        """Start the call; raise an exception if it cannot start."""


def _limit_of(
    invocation: calls.Invocation, default: time_limits.TimeLimit
) -> time_limits.TimeLimit:
    timelimit = invocation.task.timelimit
    if timelimit is None:
        return default
    return time_limits.read(timelimit, f"the timelimit of task {invocation.task.name!r}")


class SerialTaskExecutor(calls.TaskExecutor):
    """Runs each task immediately, in the submitting thread, in the order of submission.

    Async bodies run in an event loop of the executor, one after the other.

    An interruption of a task (`invocation.raise_interruption`) is not an outcome; `submit` raises
    it.

    When a time limit is exceeded, its exception (`SoftTimeLimitExceeded`, then `TimeLimitExceeded`)
    is raised in the task between two Python instructions. Nothing else can end a task here.
    """

    #: Tasks run in the process of the engine, so their own notifiers have received their events.
    in_process: ClassVar[bool] = True
    immediate: bool = True

    def __init__(
        self, *, strict: bool = False, limit: time_limits.TimeLimit = time_limits.UNLIMITED
    ) -> None:
        self._loop = event_loop.EventLoop()
        self._strict = strict
        self._limit = limit

    def stop(self) -> None:
        # The next run gets a new loop, because an interrupt may end the wait for this one.
        loop, self._loop = self._loop, event_loop.EventLoop()
        loop.stop()

    def cancel(self, invocations: Iterable[calls.Invocation]) -> None:
        for invocation in invocations:
            invocation.cancellation.cancel()

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        if invocation.cancellation.cancelled and not invocation.recovered:
            refusal = exceptions.Cancelled(f"Task {invocation.task.name!r} was cancelled")
            done(invocation, calls.Outcome(ft.Failure.from_exception(refusal)))
            return
        if invocation.not_after is not None and (expired := invocation.expired()) is not None:
            done(invocation, expired)
            return
        # the start is stored with the outcome: nothing is written while the task runs
        _report_begin(invocation, written=False)
        invoke: Invoke = calls.invoke
        if self._strict:
            invoke = strictness.invoke
            refused = strictness.refused(invocation)
            if refused is not None:
                done(invocation, refused)
                return
        if self._limit is time_limits.UNLIMITED and invocation.task.timelimit is None:
            outcome = invoke(invocation, self._loop)
        else:
            outcome = _outcome_of(self._limited(invoke, invocation))
        if isinstance(outcome.value, ft.Failure):  # saves a call for each task that succeeds
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
    """Runs tasks in a pool of threads: its own, or a given `concurrent.futures.Executor`.

    Its own pool has at most `max_workers` threads (default: processors + 4, at most 32), which
    start when needed. A given `executor` must use threads and is never shut down.

    Async bodies need no thread of the pool: all of them run in one event loop. The loop belongs to
    the executor, also if the pool is given, and ends with `stop`.

    `thread_pools.ThreadPool`, `thread_pools.ExternalPool` and `EventLoop` describe how time limits
    are enforced.
    """

    in_process: ClassVar[bool] = True

    def __init__(
        self,
        executor: futures.Executor | None = None,
        max_workers: int | None = None,
        *,
        strict: bool = False,
        limit: time_limits.TimeLimit = time_limits.UNLIMITED,
    ) -> None:
        super().__init__(strict=strict, limit=limit)
        self._is_external = executor is not None
        self._max_workers = max_workers
        self._pool: thread_pools.ThreadPool | thread_pools.ExternalPool | None = None
        if executor is not None:
            self._pool = thread_pools.ExternalPool(executor)
        self._loop = event_loop.EventLoop()
        self._invoke = strictness.invoke if strict else calls.invoke
        self._ainvoke = strictness.ainvoke if strict else calls.ainvoke

    def start(self) -> None:
        if self._pool is None:
            size = self._max_workers
            self._pool = thread_pools.ThreadPool(size if size is not None else _default_threads())

    def stop(self) -> None:
        pool = self._pool
        if pool is not None:
            try:
                pool.stop()
            except BaseException:
                pool.stop(wait=False)  # An interrupt may have stopped the first call early.
                raise
            finally:
                if not self._is_external:
                    self._pool = None
        # After the pool, because plain bodies may have async hooks. The next run gets a new loop,
        # because an interrupt may end the wait for this one.
        loop, self._loop = self._loop, event_loop.EventLoop()
        loop.stop()

    def withdraw(self) -> list[calls.Invocation]:
        withdrawn = [call.args[0] for call in self._loop.withdraw()]
        if self._pool is not None:
            withdrawn.extend(call.args[1] for call in self._pool.withdraw())
        return withdrawn

    def disown(self) -> None:
        super().disown()
        self.abandon_detached()

    def abandon_detached(self) -> None:
        self._loop.abandon(_is_detached)

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        if pool is None:
            raise RuntimeError("the executor is not started")
        limit = _limit_of(invocation, self._limit)
        task, tell = invocation.task, functools.partial(_report, invocation, done)
        if task.async_bodies and invocation.action in task.async_bodies:
            _report_begin(invocation)  # async calls do not wait for each other
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
    return min(32, (os.cpu_count() or 1) + 4)


def _call_here(
    invoke: Invoke,
    invocation: calls.Invocation,
    loop: event_loop.EventLoop,
    emit: thread_pools.PoolCall,
) -> calls.Outcome:
    expired = None if invocation.not_after is None else invocation.expired()
    if expired is not None:
        return expired
    _report_begin(invocation)
    return invoke(invocation, loop)


def _report_begin(invocation: calls.Invocation, *, written: bool = True) -> None:
    """Report that a call began; stored soon, or (not `written`) with the next change."""
    began = getattr(invocation.events, "began", None)
    if began is not None:
        began(running.LOCAL, written)


def _report(invocation: calls.Invocation, done: calls.Done, value: Any) -> None:
    done(invocation, _outcome_of(value))


def _outcome_of(value: Any) -> calls.Outcome:
    return value if isinstance(value, calls.Outcome) else calls.Outcome(value)


class _RemoteTaskExecutor(LocalTaskExecutor):
    in_process: ClassVar[bool] = False

    _pool: process_pool.ProcessPool | thread_pools.ExternalPool | None

    def withdraw(self) -> list[calls.Invocation]:
        if self._pool is None:
            return []
        completions: list[Any] = [call.done for call in self._pool.withdraw()]
        return [done.invocation for done in completions]


class FutureProcessTaskExecutor(_RemoteTaskExecutor):
    """Runs tasks in a given `concurrent.futures.ProcessPoolExecutor`, which is never shut down.

    Tasks, arguments and results are pickled. Such a pool transfers nothing but results: events of a
    running task are lost, and the task is not notified of a cancellation (`ProcessTaskExecutor`
    supports both). Its processes cannot be killed individually, so a time limit only raises an
    exception in the task. Async bodies run in an event loop of their process, one at a time.
    """

    def __init__(
        self,
        executor: futures.Executor,
        *,
        strict: bool = False,
        limit: time_limits.TimeLimit = time_limits.UNLIMITED,
    ) -> None:
        super().__init__(strict=strict, limit=limit)
        self._pool: thread_pools.ExternalPool = thread_pools.ExternalPool(executor, remote=True)

    def stop(self) -> None:
        self._pool.stop()

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        data = _pickled_call(self._strict, _limit_of(invocation, self._limit), invocation)
        completion = _Completion(invocation, done)
        fn, args = _with_trace_context(invocation, (_call_pickled, (data,)))
        name, cancellation = invocation.task.name, invocation.cancellation
        _report_begin(invocation)  # the executor does not report when it begins a call
        self._pool.submit(fn, args, completion, name=name, cancellation=cancellation)


class ProcessTaskExecutor(_RemoteTaskExecutor):
    """Runs tasks in `max_workers` child processes (default: one for each processor).

    Tasks are pickled without their listeners. Their events are sent back to `Invocation.events`. A
    task that cannot be pickled, or whose child dies, fails alone. Async bodies run in an event loop
    of their child, one at a time.

    `ProcessPool` describes how time limits are enforced. A cancelled task is killed after `grace`
    seconds (None: never).
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        strict: bool = False,
        limit: time_limits.TimeLimit = time_limits.UNLIMITED,
        grace: float | None = CANCEL_GRACE_SECONDS,
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
        if not isinstance(pool, process_pool.ProcessPool):
            raise RuntimeError("the executor is not started")
        limit = _limit_of(invocation, self._limit)
        fn, args = _with_trace_context(invocation, (_call, (self._strict, *_portable(invocation))))
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
            on_begin=functools.partial(_report_begin, invocation),
        )


class _Completion:
    __slots__ = ("_done", "invocation")

    def __init__(self, invocation: calls.Invocation, done: calls.Done) -> None:
        self.invocation = invocation
        self._done = done

    def __call__(self, value: Any) -> None:
        if isinstance(value, bytes):
            value = pickle.loads(value)
        if isinstance(value, ft.Failure):
            outcome = calls.Outcome(_name_refused_argument(value, self.invocation))
        else:
            result, started, ended = value
            if isinstance(result, ft.Failure):
                result = _with_interruption(result)
            outcome = calls.Outcome(result, running.LOCAL, started, ended)
        self._done(self.invocation, outcome)


def _with_interruption(failure: ft.Failure) -> ft.Failure:
    """Return a failure with a new exception object if it is one that ends the program.

    The child process returns only the data of the failure, without the exception object.
    """
    exception_class: Any = failure.check(KeyboardInterrupt, SystemExit)
    return (
        failure
        if exception_class is None
        else ft.Failure.from_exception(exception_class(*failure.exception_args))
    )


def _pool_size() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _with_trace_context(invocation: calls.Invocation, call: running.Call) -> running.Call:
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
) -> _TimedResult:
    call = calls.Invocation(task, action, uuid, attempt, arguments, result, failures, emit)
    call.flow_uuid, call.index, call.resumed, call.epoch, call.recovered, call.captures = origin
    call.not_after = not_after
    if emit is None:
        call.captures = False
    else:
        call.cancellation = emit.cancellation
    if call.captures:
        task_logs.capture()
    expired = None if not_after is None else call.expired()
    if expired is not None:
        return expired.value, None, None
    outcome = strictness.invoke(call) if strict else calls.invoke(call)
    return outcome.value, outcome.started, outcome.ended


def _pickled_call(
    strict: bool, limit: time_limits.TimeLimit, invocation: calls.Invocation
) -> bytes:
    try:
        return pickle.dumps((limit, strict, *_portable(invocation)))
    except Exception as error:
        raise exceptions.NotEncodable(
            f"Task {invocation.task.name!r} and its arguments cannot be sent to a child"
            f" process: {error}",
            path="call",
        ) from error


def _call_pickled(data: bytes, emit: None) -> bytes:
    limit, *arguments = pickle.loads(data)
    name = arguments[1].name
    call: Any = functools.partial(_call, *arguments)
    timed_result: Any
    if limit == time_limits.UNLIMITED:
        timed_result = call(emit)
    else:
        interrupts.handle_signal()
        timed_result = interrupts.limited(limit, call, (emit,))
        if isinstance(timed_result, ft.Failure):
            timed_result = timed_result, None, None
    try:
        return pickle.dumps(timed_result)
    except Exception as error:
        refusal = exceptions.NotEncodable(
            f"The result of task {name!r} cannot be sent from its child process: {error}"
        )
        return pickle.dumps((ft.Failure.from_exception(refusal), *timed_result[1:]))


def _name_refused_argument(failure: ft.Failure, invocation: calls.Invocation) -> ft.Failure:
    error = failure.exception
    if not isinstance(error, exceptions.NotEncodable):
        return failure
    arguments = invocation.arguments.items()
    refused_arguments = [
        (name, value) for name, value in arguments if not child_process.pickles(value)
    ]
    path, type_name = error.path, error.type_name
    if refused_arguments:
        path, type_name = (
            f"arguments[{refused_arguments[0][0]!r}]",
            _names.dotted(type(refused_arguments[0][1])),
        )
    text = f"Task {invocation.task.name!r}: {f'{path}: ' if refused_arguments else ''}{error}"
    refusal = exceptions.NotEncodable(text, cause=error, path=path, type_name=type_name)
    return ft.Failure.from_exception(refusal)
