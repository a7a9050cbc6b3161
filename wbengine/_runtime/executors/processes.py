"""Executors that run tasks in child processes."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, ClassVar

from wbengine import exceptions, running
from wbengine import task as task_module
from wbengine._calls import invocation as calls
from wbengine._concurrency import child_process, interrupts, process_pool, thread_pools, time_limits
from wbengine._introspection import object_names
from wbengine._logs import captured_lines
from wbengine._runtime import strict as strictness
from wbengine._runtime.executors import base
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
    """Runs tasks in a given `concurrent.futures.Executor`, which is never shut down.

    The executor may pickle its calls and run them in other processes, also on other hosts. Tasks,
    arguments and results are pickled with them. Nothing but results is transferred: events of a
    running task are lost, and the task is not notified of a cancellation (`ProcessTaskExecutor`
    supports both). A time limit only raises an exception in the task, because processes cannot be
    killed individually. Async bodies run in an event loop of their process.

    If the executor calls functions in this process, only events are different: they are received.
    """

    def __init__(
        self,
        executor: futures.Executor,
        *,
        strict: bool = False,
        limit: time_limits.TimeLimit = time_limits.UNLIMITED,
    ) -> None:
        super().__init__(strict=strict, limit=limit)
        # The processes of other executors do not run the `__main__` of this process.
        self._by_value = not isinstance(executor, futures.ProcessPoolExecutor)
        self._pool: thread_pools.ExternalPool = thread_pools.ExternalPool(executor, remote=True)

    def stop(self) -> None:
        self._pool.stop()

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        limit = base.limit_of(invocation, self._limit)
        call = _PortableCall(invocation, self._strict, limit, by_value=self._by_value)
        fn, args = _with_trace_context(invocation, (_call_portable, (call,)))
        name, cancellation = invocation.task.name, invocation.cancellation
        base.report_begin(invocation)  # the executor does not report when it begins a call
        completion = _PortableCompletion(invocation, done, call)
        try:
            self._pool.submit(fn, args, completion, name=name, cancellation=cancellation)
        except Exception as error:
            completion(ft.Failure.from_exception(error))


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
        if isinstance(value, ft.Failure):
            outcome = calls.Outcome(_name_refused_argument(value, self.invocation))
        else:
            result, started, ended = value
            if isinstance(result, ft.Failure):
                result = _with_interruption(result)
            outcome = calls.Outcome(result, running.LOCAL, started, ended)
        self._done(self.invocation, outcome)


class _PortableCompletion(_Completion):
    __slots__ = ("_call",)

    def __init__(self, invocation: calls.Invocation, done: calls.Done, call: _PortableCall) -> None:
        super().__init__(invocation, done)
        self._call = call

    def __call__(self, value: Any) -> None:
        if isinstance(value, bytes):
            value = pickle.loads(value)
        elif isinstance(value, ft.Failure):
            value = self._explain(value)
        super().__call__(value)

    def _explain(self, failure: ft.Failure) -> ft.Failure:
        """Return the failure for an error of the executor."""
        error: Any = failure.exception
        if self._call.refusal is not None:
            return ft.Failure.from_exception(self._call.refusal)
        is_known = isinstance(error, ImportError | exceptions.WbengineException)
        if is_known or not self._call.was_pickled:  # The task has not begun.
            return failure
        lost = exceptions.WorkerLost(
            f"the executor lost task {self.invocation.task.name!r}: {error!r}"
        )
        lost.__cause__ = error
        return ft.Failure.from_exception(lost)


class _PortableCall:
    """A call for an executor that runs it in this process, or pickles it for another one.

    :param by_value: whether definitions of `__main__` are sent, instead of their names.
    :ivar was_pickled: whether another process may have run the call.
    :ivar refusal: why the call could not be pickled, or None.
    """

    def __init__(
        self,
        invocation: calls.Invocation,
        strict: bool,
        limit: time_limits.TimeLimit,
        *,
        by_value: bool,
    ) -> None:
        self._invocation = invocation
        self._strict = strict
        self._limit = limit
        self._by_value = by_value
        self.was_pickled = False
        self.refusal: exceptions.NotEncodable | None = None

    def __call__(self) -> _TimedResult:
        task = self._invocation.task.copy(retain_listeners=False)
        return _run(self._strict, self._limit, dataclasses.replace(self._invocation, task=task))

    def __reduce__(self) -> tuple[Any, ...]:
        *fields, not_after = _fields(self._invocation)
        if not_after is not None:  # Another host has another monotonic clock.
            not_after += time.time() - time.monotonic()
        try:
            call = (self._strict, self._limit, *fields, not_after)
            data = _dumps(call, by_value=self._by_value)
        except Exception as error:
            self.refusal = exceptions.NotEncodable(
                f"call cannot be pickled ({type(error).__name__}: {error})", path="call"
            )
            raise self.refusal from error
        self.was_pickled = True
        return functools.partial, (_call_pickled, data, self._by_value)


def _dumps(value: Any, *, by_value: bool) -> bytes:
    """Pickle a value, with the definitions of `__main__` if `by_value` is set.

    The library cloudpickle can do this. Executors that need it have imported it.
    """
    cloudpickle = sys.modules.get("cloudpickle") if by_value else None
    try:
        data = pickle.dumps(value)
        if cloudpickle is None or b"__main__" not in data:
            return data
    except Exception:
        if cloudpickle is None:
            raise
    pickled_by_value: bytes = cloudpickle.dumps(value)
    return pickled_by_value


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
            invocation.repeats,
            invocation.epoch,
            invocation.recovered,
            invocation.captures,
            invocation.payloads,
            invocation.stores_large,
            invocation.settled,
        ),
        invocation.not_after,
    )


def _restored(
    task: task_module.Task,
    action: calls.Action,
    uuid: str,
    attempt: int,
    arguments: Mapping[str, Any],
    result: Any,
    failures: Mapping[str, ft.Failure],
    origin: tuple[Any, ...],
    not_after: float | None = None,
) -> calls.Invocation:
    call = calls.Invocation(task, action, uuid, attempt, arguments, result, failures)
    (
        call.flow_uuid, call.index, call.repeats, call.epoch, call.recovered, call.captures,
        call.payloads, call.stores_large, call.settled,
    ) = origin  # fmt: skip
    call.not_after = not_after
    return call


def _call(strict: bool, *fields_and_emit: Any) -> _TimedResult:
    *fields, emit = fields_and_emit
    call = _restored(*fields)
    call.events, call.cancellation = emit, emit.cancellation
    if call.captures:
        captured_lines.capture()
    return _run(strict, time_limits.UNLIMITED, call)


def _run(strict: bool, limit: time_limits.TimeLimit, call: calls.Invocation) -> _TimedResult:
    expired = None if call.not_after is None else call.expired()
    if expired is not None:
        return expired.value, None, None
    invoke = strictness.invoke if strict else calls.invoke
    if limit == time_limits.UNLIMITED:
        outcome = invoke(call)
    else:
        outcome = base.limited(limit, call.task.name, invoke, call)
    return outcome.value, outcome.started, outcome.ended


def _call_portable(call: Callable[[], _TimedResult | bytes], emit: None) -> _TimedResult | bytes:
    return call()


def _call_pickled(data: bytes, by_value: bool) -> bytes:
    """Make a call in another process."""
    try:
        strict, limit, *fields, not_after = pickle.loads(data)
    except Exception as error:  # For example, the module of the task is missing there.
        return pickle.dumps((ft.Failure.from_exception(error), None, None))
    call = _restored(*fields)
    if not_after is not None:
        call.not_after = not_after - time.time() + time.monotonic()
    call.captures = False
    if limit != time_limits.UNLIMITED:
        interrupts.handle_signal()
    timed_result = _run(strict, limit, call)
    try:
        return _dumps(timed_result, by_value=by_value)
    except Exception as error:
        refusal = exceptions.NotEncodable(
            f"The result of task {call.task.name!r} cannot be sent from its child process: {error}"
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
            object_names.dotted(type(refused_arguments[0][1])),
        )
    text = f"Task {invocation.task.name!r}: {f'{path}: ' if refused_arguments else ''}{error}"
    refusal = exceptions.NotEncodable(text, cause=error, path=path, type_name=type_name)
    return ft.Failure.from_exception(refusal)
