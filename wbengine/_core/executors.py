"""Where tasks run on this host: in the engine's thread, in threads, in processes."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections.abc import Mapping
from concurrent import futures
from typing import Any, ClassVar, Final

from wbengine import exceptions, pools
from wbengine import invocation as calls
from wbengine import task as task_module
from wbengine.types import failure as ft

__all__ = [
    "FutureProcessTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]

#: What a child sends back: the value (or Failure), when it started, and when it ended.
_Answer = tuple[Any, float | None, float | None]

_MARK: Final = "wbengine"


class SerialTaskExecutor(calls.TaskExecutor):
    """Runs every task at once, in the thread that submits it, in the order submitted."""

    #: Tasks run in the engine's process: their own notifiers have heard their events already.
    in_process: ClassVar[bool] = True

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        done(invocation, calls.invoke(invocation))


class ThreadTaskExecutor(calls.TaskExecutor):
    """Runs tasks in a pool of threads: its own, or any `concurrent.futures.Executor` of threads.

    An own pool has `max_workers` threads (default: the standard library's choice), started when
    needed.  A given `executor` is used as it is and never shut down.
    """

    in_process: ClassVar[bool] = True

    def __init__(
        self, executor: futures.Executor | None = None, max_workers: int | None = None
    ) -> None:
        self._given = executor
        self._max_workers = max_workers
        self._pool = executor
        self._lock = threading.Lock()
        self._pending: dict[futures.Future[Any], calls.Invocation] = {}

    def start(self) -> None:
        if self._pool is None:
            self._pool = futures.ThreadPoolExecutor(self._max_workers, thread_name_prefix=_MARK)

    def stop(self) -> None:
        if self._given is None and self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=True)

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        try:
            if pool is None:
                raise RuntimeError("the executor was not started")
            future = self._send(pool, invocation)
        except Exception as error:
            done(invocation, calls.Outcome(ft.Failure.from_exception(error)))
            return
        with self._lock:
            self._pending[future] = invocation
        future.add_done_callback(functools.partial(self._finished, invocation, done))

    def withdraw(self) -> list[calls.Invocation]:
        with self._lock:
            pending = list(self._pending.items())
        taken = []
        for future, invocation in pending:
            with self._lock:
                mine = self._pending.pop(future, None)
            if mine is None:
                continue
            # The entry is gone first: so the callback of a cancelled future knows who took it.
            if future.cancel():
                taken.append(invocation)
            else:
                with self._lock:
                    self._pending[future] = invocation
                if future.done():
                    with self._lock:
                        self._pending.pop(future, None)
        return taken

    def _send(
        self, pool: futures.Executor, invocation: calls.Invocation
    ) -> futures.Future[calls.Outcome]:
        return pool.submit(calls.invoke, invocation)

    def _finished(
        self, invocation: calls.Invocation, done: calls.Done, future: futures.Future[Any]
    ) -> None:
        with self._lock:
            known = self._pending.pop(future, None)
        if future.cancelled():
            if known is not None:
                error = exceptions.ExecutionFailure(
                    f"The pool dropped task {invocation.task.name!r} before it started"
                )
                done(invocation, calls.Outcome(ft.Failure.from_exception(error)))
            return
        problem = future.exception()
        if problem is None:
            done(invocation, self._outcome(invocation, future.result()))
        else:
            done(invocation, calls.Outcome(ft.Failure.from_exception(problem)))

    def _outcome(self, invocation: calls.Invocation, value: Any) -> calls.Outcome:
        outcome: calls.Outcome = value
        return outcome


class FutureProcessTaskExecutor(ThreadTaskExecutor):
    """Runs tasks in a given `concurrent.futures.ProcessPoolExecutor`, which is never shut down.

    Tasks, arguments and results are pickled.  Such a pool has no way back but the result: what a
    task tells while it runs is lost (`ProcessTaskExecutor` brings it back).
    """

    in_process: ClassVar[bool] = False

    def _send(self, pool: futures.Executor, invocation: calls.Invocation) -> futures.Future[Any]:
        return pool.submit(_call_pickled, _pickled_call(invocation))

    def _outcome(self, invocation: calls.Invocation, value: Any) -> calls.Outcome:
        answer, started, ended = pickle.loads(value)
        return calls.Outcome(answer, calls.LOCAL, started, ended)


class ProcessTaskExecutor(calls.TaskExecutor):
    """Runs tasks in `max_workers` child processes (default: one per processor).

    Tasks are pickled without their listeners; what they tell while they run comes back and reaches
    `Invocation.events` here.  What cannot be pickled, and a child that dies, is a failure of that
    task alone.
    """

    in_process: ClassVar[bool] = False

    def __init__(self, max_workers: int | None = None) -> None:
        self._size = max_workers if max_workers is not None else _pool_size()
        self._pool: pools.ProcessPool | None = None
        self._lock = threading.Lock()
        self._pending: dict[pools.Ticket, calls.Invocation] = {}

    def start(self) -> None:
        if self._pool is None:
            self._pool = pools.ProcessPool(self._size)

    def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        try:
            if pool is None:
                raise RuntimeError("the executor was not started")
            # Held over both steps: the answer must not arrive before the ticket is known.
            with self._lock:
                settle = _Settle(self, invocation, done)
                ticket = pool.submit(_call, _portable(invocation), settle, invocation.events)
                settle.ticket = ticket
                self._pending[ticket] = invocation
        except Exception as error:
            done(invocation, calls.Outcome(ft.Failure.from_exception(error)))

    def withdraw(self) -> list[calls.Invocation]:
        pool = self._pool
        if pool is None:
            return []
        tickets = pool.withdraw()
        with self._lock:
            return [self._pending.pop(ticket) for ticket in tickets]

    def settled(self, settle: _Settle) -> None:
        """Drop a call that came to its end."""
        with self._lock:  # `submit` holds it until the ticket is known
            if settle.ticket is not None:
                self._pending.pop(settle.ticket, None)


class _Settle:
    """Turns the value a pool gives for one call into the outcome of its invocation."""

    __slots__ = ("_done", "_executor", "_invocation", "ticket")

    def __init__(
        self, executor: ProcessTaskExecutor, invocation: calls.Invocation, done: calls.Done
    ) -> None:
        self._executor = executor
        self._invocation = invocation
        self._done = done
        self.ticket: pools.Ticket | None = None

    def __call__(self, value: Any) -> None:
        self._executor.settled(self)
        if isinstance(value, ft.Failure):
            outcome = calls.Outcome(_named(value, self._invocation))
        else:
            answer, started, ended = value
            outcome = calls.Outcome(answer, calls.LOCAL, started, ended)
        self._done(self._invocation, outcome)


def _pool_size() -> int:
    """How many processes are worth having here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _portable(invocation: calls.Invocation) -> tuple[Any, ...]:
    return (
        invocation.task.copy(retain_listeners=False),
        invocation.action,
        invocation.uuid,
        invocation.attempt,
        dict(invocation.arguments),
        invocation.result,
        dict(invocation.failures),
    )


def _call(
    task: task_module.Task,
    action: calls.Action,
    uuid: str,
    attempt: int,
    arguments: Mapping[str, Any],
    result: Any,
    failures: Mapping[str, ft.Failure],
    emit: calls.EventSink | None,
) -> _Answer:
    """Run one task in a child."""
    outcome = calls.invoke(
        calls.Invocation(task, action, uuid, attempt, arguments, result, failures, emit)
    )
    return outcome.value, outcome.started, outcome.ended


def _pickled_call(invocation: calls.Invocation) -> bytes:
    try:
        return pickle.dumps(_portable(invocation))
    except Exception as error:
        raise exceptions.NotEncodable(
            f"Task {invocation.task.name!r} and its arguments cannot be sent to a process: {error}"
        ) from error


def _call_pickled(data: bytes) -> bytes:
    task, action, uuid, attempt, arguments, result, failures = pickle.loads(data)
    answer = _call(task, action, uuid, attempt, arguments, result, failures, None)
    try:
        return pickle.dumps(answer)
    except Exception as error:
        refusal = exceptions.NotEncodable(
            f"The result of task {task.name!r} cannot be sent back from its process: {error}"
        )
        return pickle.dumps((ft.Failure.from_exception(refusal), *answer[1:]))


def _named(failure: ft.Failure, invocation: calls.Invocation) -> ft.Failure:
    """Say which task a refusal of the pool is about."""
    error = failure.exception
    if not isinstance(error, exceptions.NotEncodable):
        return failure
    return ft.Failure.from_exception(
        exceptions.NotEncodable(f"Task {invocation.task.name!r}: {error}", cause=error)
    )
