"""Where tasks run in other processes of this host."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Mapping
from concurrent import futures
from typing import Any, ClassVar

from wbengine import exceptions, running
from wbengine import invocation as calls
from wbengine import task as task_module
from wbengine.concurrency import interrupts, limits, pools, process_pool
from wbengine.runtime import strict as strictness
from wbengine.runtime.in_process import CANCEL_GRACE, LocalTaskExecutor, limit_of
from wbengine.types import failure as ft

__all__ = ["FutureProcessTaskExecutor", "ProcessTaskExecutor"]

#: What a child sends back: the value (or Failure), when it started, and when it ended.
_Answer = tuple[Any, float | None, float | None]


class _RemoteTaskExecutor(LocalTaskExecutor):
    """What executors share whose tasks run in other processes."""

    in_process: ClassVar[bool] = False

    _pool: process_pool.ProcessPool | pools.ExternalPool | None

    def withdraw(self) -> list[calls.Invocation]:
        if self._pool is None:
            return []
        settles: list[Any] = [call.done for call in self._pool.withdraw()]
        return [settle.invocation for settle in settles]


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
        self._pool = pools.ExternalPool(executor, remote=True)

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        assert self._pool is not None
        data = _pickled_call(self._strict, limit_of(invocation, self._limit), invocation)
        settle = _Settle(invocation, done)
        fn, args = _sent(invocation, (_call_pickled, (data,)))
        name, cancellation = invocation.task.name, invocation.cancellation
        self._pool.submit(fn, args, settle, name=name, cancellation=cancellation)


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
        super().__init__(strict=strict, limit=limit, grace=grace)
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
        limit = limit_of(invocation, self._limit)
        fn, args = _sent(invocation, (_call, (self._strict, *_portable(invocation))))
        pool.submit(
            fn,
            args,
            _Settle(invocation, done),
            invocation.events,
            limit,
            invocation.task.name,
            cancellation=invocation.cancellation,
            grace=self._grace,
        )


class _Settle:
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
        (invocation.flow_uuid, invocation.index, invocation.resumed, invocation.epoch),
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
    origin: tuple[str, int, int, int],
    not_after: float | None,
    emit: Any,
) -> _Answer:
    """Run one task in a child."""
    call = calls.Invocation(task, action, uuid, attempt, arguments, result, failures, emit)
    call.flow_uuid, call.index, call.resumed, call.epoch = origin
    call.not_after = not_after
    if emit is not None:
        call.cancellation = emit.cancellation
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
            path="arguments[]",
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
    """Say which task a refusal of the pool is about."""
    error = failure.exception
    if not isinstance(error, exceptions.NotEncodable):
        return failure
    return ft.Failure.from_exception(
        exceptions.NotEncodable(
            f"Task {invocation.task.name!r}: {error}",
            cause=error,
            path=error.path,
            type_name=error.type_name,
        )
    )
