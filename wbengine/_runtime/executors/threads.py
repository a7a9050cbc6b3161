"""An executor that runs tasks in threads."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent import futures
from typing import Any, ClassVar

from wbengine._calls import invocation as calls
from wbengine._concurrency import event_loop, thread_pools, time_limits
from wbengine._runtime import strict as strictness
from wbengine._runtime.executors import base

__all__ = ["ThreadTaskExecutor"]


class ThreadTaskExecutor(base.LocalTaskExecutor):
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
        limit = base.limit_of(invocation, self._limit)
        task, tell = invocation.task, functools.partial(_report, invocation, done)
        if task.async_bodies and invocation.action in task.async_bodies:
            base.report_begin(invocation)  # async calls do not wait for each other
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
    invoke: Callable[[calls.Invocation, event_loop.EventLoop], calls.Outcome],
    invocation: calls.Invocation,
    loop: event_loop.EventLoop,
    emit: thread_pools.PoolCall,
) -> calls.Outcome:
    expired = None if invocation.not_after is None else invocation.expired()
    if expired is not None:
        return expired
    base.report_begin(invocation)
    return invoke(invocation, loop)


def _report(invocation: calls.Invocation, done: calls.Done, value: Any) -> None:
    done(invocation, base.outcome_of(value))
