"""Where tasks run on this host: in the engine's thread, in threads, in processes."""

from __future__ import annotations

import abc
import functools
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, ClassVar, Final

from wbengine import exceptions, loops, pools
from wbengine import invocation as calls
from wbengine import task as task_module
from wbengine._core import strict as strictness
from wbengine.types import failure as ft

__all__ = [
    "FutureProcessTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]

#: What a child sends back: the value (or Failure), when it started, and when it ended.
_Answer = tuple[Any, float | None, float | None]

_Invoke = Callable[[calls.Invocation, loops.Loop], calls.Outcome]

_MARK: Final = "wbengine"


class _LocalTaskExecutor(calls.TaskExecutor):
    """What the executors of this host share.

    `strict`: refuse the arguments and results that could not travel to a worker.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict

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

    def disown(self) -> None:
        self.withdraw()  # nobody else sees what waits here

    @abc.abstractmethod
    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        """Have it run, or raise why not."""


class SerialTaskExecutor(calls.TaskExecutor):
    """Runs every task at once, in the thread that submits it, in the order submitted.

    Async bodies run in an event loop of its own, one after the other like all others.
    """

    #: Tasks run in the engine's process: their own notifiers have heard their events already.
    in_process: ClassVar[bool] = True
    immediate: bool = True

    def __init__(self, *, strict: bool = False) -> None:
        self._loop = loops.Loop()
        self._strict = strict

    def stop(self) -> None:
        # Another for the next run: an interruption may end the waiting for this one.
        loop, self._loop = self._loop, loops.Loop()
        loop.stop()

    def submit(self, invocation: calls.Invocation, done: calls.Done) -> None:
        if self._strict:
            refused = strictness.refused(invocation)
            done(invocation, refused or strictness.invoke(invocation, self._loop))
        else:
            done(invocation, calls.invoke(invocation, self._loop))


class ThreadTaskExecutor(_LocalTaskExecutor):
    """Runs tasks in a pool of threads: its own, or any `concurrent.futures.Executor` of threads.

    An own pool has `max_workers` threads (default: the standard library's choice), started when
    needed.  A given `executor` is used as it is and never shut down.

    Async bodies need no thread of the pool: they all run, as many as there are, in one event loop.
    It is the executor's own also when the pool is given, and ends with `stop`.
    """

    in_process: ClassVar[bool] = True

    def __init__(
        self,
        executor: futures.Executor | None = None,
        max_workers: int | None = None,
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(strict=strict)
        self._given = executor
        self._max_workers = max_workers
        self._pool = executor
        self._loop = loops.Loop()
        self._invoke = strictness.invoke if strict else calls.invoke
        self._ainvoke = strictness.ainvoke if strict else calls.ainvoke
        # What may still be withdrawn, or told of.  Whoever takes an entry out decides its fate.
        self._pending: dict[futures.Future[Any], tuple[calls.Invocation, calls.Done]] = {}

    def start(self) -> None:
        if self._pool is None:
            self._pool = futures.ThreadPoolExecutor(self._max_workers, thread_name_prefix=_MARK)

    def stop(self) -> None:
        if self._given is None and self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=True)
        # After the pool: plain bodies may have hooks that are async.  Another one for the next run:
        # an interruption may end the waiting for this one.
        loop, self._loop = self._loop, loops.Loop()
        loop.stop()

    def withdraw(self) -> list[calls.Invocation]:
        taken = [ticket.args[0] for ticket in self._loop.withdraw()]
        for future in self._pending.copy():
            entry = self._pending.pop(future, None)
            if entry is None:
                continue  # it ended just now
            if future.cancel():
                taken.append(entry[0])
            else:
                self._watch(future, *entry)  # it runs, or has ended just now
        return taken

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        if pool is None:
            raise RuntimeError("the executor was not started")
        if self._in_loop(invocation):
            self._loop.submit(
                self._ainvoke, (invocation,), functools.partial(_report, invocation, done)
            )
        else:
            self._watch(self._send(pool, invocation), invocation, done)

    def _in_loop(self, invocation: calls.Invocation) -> bool:
        bodies = invocation.task.async_bodies
        return bool(bodies) and invocation.action in bodies

    def _send(
        self, pool: futures.Executor, invocation: calls.Invocation
    ) -> futures.Future[calls.Outcome]:
        return pool.submit(_call_here, self._invoke, invocation, self._loop)

    def _watch(
        self, future: futures.Future[Any], invocation: calls.Invocation, done: calls.Done
    ) -> None:
        self._pending[future] = invocation, done
        future.add_done_callback(self._ended)

    def _ended(self, future: futures.Future[Any]) -> None:
        entry = self._pending.pop(future, None)
        if entry is None:
            return  # withdrawn, or told already
        invocation, done = entry
        value: Any
        if future.cancelled():
            value = ft.Failure.from_exception(
                exceptions.ExecutionFailure(
                    f"The pool dropped task {invocation.task.name!r} before it started"
                )
            )
        else:
            problem = future.exception()
            value = ft.Failure.from_exception(problem) if problem else self._read(future.result())
        _report(invocation, done, value)

    def _read(self, value: Any) -> calls.Outcome:
        """The outcome in what the pool gave."""
        outcome: calls.Outcome = value
        return outcome


def _call_here(invoke: _Invoke, invocation: calls.Invocation, loop: loops.Loop) -> calls.Outcome:
    pid = os.getpid()
    outcome = invoke(invocation, loop)
    if os.getpid() != pid:  # a fork that the task made, and that came out of it as well
        os._exit(0)
    return outcome


def _report(invocation: calls.Invocation, done: calls.Done, value: Any) -> None:
    done(invocation, value if isinstance(value, calls.Outcome) else calls.Outcome(value))


class FutureProcessTaskExecutor(ThreadTaskExecutor):
    """Runs tasks in a given `concurrent.futures.ProcessPoolExecutor`, which is never shut down.

    Tasks, arguments and results are pickled.  Such a pool has no way back but the result: what a
    task tells while it runs is lost (`ProcessTaskExecutor` brings it back).  Async bodies run in an
    event loop of their process, one at a time.
    """

    in_process: ClassVar[bool] = False

    def _in_loop(self, invocation: calls.Invocation) -> bool:
        return False

    def _send(self, pool: futures.Executor, invocation: calls.Invocation) -> futures.Future[Any]:
        return pool.submit(_call_pickled, _pickled_call(self._strict, invocation))

    def _read(self, value: Any) -> calls.Outcome:
        answer, started, ended = pickle.loads(value)
        return calls.Outcome(answer, calls.LOCAL, started, ended)


class ProcessTaskExecutor(_LocalTaskExecutor):
    """Runs tasks in `max_workers` child processes (default: one per processor).

    Tasks are pickled without their listeners; what they tell while they run comes back and reaches
    `Invocation.events` here.  What cannot be pickled, and a child that dies, is a failure of that
    task alone.  Async bodies run in an event loop of their child, one at a time.
    """

    in_process: ClassVar[bool] = False

    def __init__(self, max_workers: int | None = None, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
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

    def withdraw(self) -> list[calls.Invocation]:
        pool = self._pool
        if pool is None:
            return []
        tickets = pool.withdraw()
        with self._lock:
            # One is not known if an interruption came while it was submitted.
            return [self._pending.pop(ticket) for ticket in tickets if ticket in self._pending]

    def _begin(self, invocation: calls.Invocation, done: calls.Done) -> None:
        pool = self._pool
        if pool is None:
            raise RuntimeError("the executor was not started")
        # Held over both steps: the answer must not arrive before the ticket is known.
        with self._lock:
            settle = _Settle(self, invocation, done)
            arguments = (self._strict, *_portable(invocation))
            ticket = pool.submit(_call, arguments, settle, invocation.events)
            settle.ticket = ticket
            self._pending[ticket] = invocation

    def settled(self, settle: _Settle) -> None:
        """Drop a call that came to its end."""
        with self._lock:  # `_begin` holds it until the ticket is known
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
    strict: bool,
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
    call = calls.Invocation(task, action, uuid, attempt, arguments, result, failures, emit)
    outcome = strictness.invoke(call) if strict else calls.invoke(call)
    return outcome.value, outcome.started, outcome.ended


def _pickled_call(strict: bool, invocation: calls.Invocation) -> bytes:
    try:
        return pickle.dumps((strict, *_portable(invocation), None))
    except Exception as error:
        raise exceptions.NotEncodable(
            f"Task {invocation.task.name!r} and its arguments cannot be sent to a process: {error}",
            path="arguments[]",
        ) from error


def _call_pickled(data: bytes) -> bytes:
    arguments = pickle.loads(data)
    name = arguments[1].name
    answer = _call(*arguments)
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
