"""Executors that run tasks in child processes."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Mapping
from concurrent import futures
from typing import Any, ClassVar

from wbengine import _names, exceptions, running, task_logs
from wbengine import invocation as calls
from wbengine import task as task_module
from wbengine.concurrency import (
    child_process,
    interrupts,
    process_pool,
    thread_pools,
    time_limits,
)
from wbengine.runtime import strict as strictness
from wbengine.runtime.executors import base
from wbengine.types import failure as ft

__all__ = ["FutureProcessTaskExecutor", "ProcessTaskExecutor"]

#: The value (or Failure) that a child returns, with its start and end times.
_TimedResult = tuple[Any, float | None, float | None]


class _ProcessTaskExecutor(base.LocalTaskExecutor):
    in_process: ClassVar[bool] = False

    _pool: process_pool.ProcessPool | thread_pools.ExternalPool | None

    def withdraw(self) -> list[calls.Invocation]:
        if self._pool is None:
            return []
        completions: list[Any] = [call.done for call in self._pool.withdraw()]
        return [done.invocation for done in completions]


class FutureProcessTaskExecutor(_ProcessTaskExecutor):
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
        data = _pickled_call(self._strict, base.limit_of(invocation, self._limit), invocation)
        completion = _Completion(invocation, done)
        fn, args = _with_trace_context(invocation, (_call_pickled, (data,)))
        name, cancellation = invocation.task.name, invocation.cancellation
        base.report_begin(invocation)  # the executor does not report when it begins a call
        self._pool.submit(fn, args, completion, name=name, cancellation=cancellation)


class ProcessTaskExecutor(_ProcessTaskExecutor):
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
        grace: float | None = base.CANCEL_GRACE_SECONDS,
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
        limit = base.limit_of(invocation, self._limit)
        fn, args = _with_trace_context(invocation, (_call, (self._strict, *_fields(invocation))))
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
            on_begin=functools.partial(base.report_begin, invocation),
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


def _fields(invocation: calls.Invocation) -> tuple[Any, ...]:
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
        return pickle.dumps((limit, strict, *_fields(invocation)))
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
