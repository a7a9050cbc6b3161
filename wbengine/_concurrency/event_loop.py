"""An event loop in its own thread, which runs async functions of tasks.

Each executor has one `EventLoop`. It has no thread until the first coroutine is submitted. All
coroutines run concurrently, each as an `asyncio.Task` with a copy of its submitter's context. Their
exceptions (including `SystemExit` and `CancelledError`) are returned as failures. They affect
neither the loop nor other coroutines.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import inspect
import logging
import queue
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import exceptions
from wbengine._concurrency import forks, interrupts, per_process, threads, timers
from wbengine._concurrency.call import Call, Cancellation, Done
from wbengine._concurrency.time_limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

__all__ = ["EventLoop", "LoopCall", "live_loops", "of_process", "stop_all"]

LOG = logging.getLogger("wbengine.loops")

Function = Callable[..., Coroutine[Any, Any, Any]]

#: Time limit for the end of cancelled tasks that coroutines left running.
_GRACE_SECONDS: Final = 5.0
#: Maximum wait for each loop at the exit of the interpreter.
_EXIT_GRACE_SECONDS: Final = 1.0

#: Value of a call whose coroutine has not started.
_NOT_BEGUN: Final = object()


@dataclass(slots=True, eq=False, repr=False)
class LoopCall(Call):
    """A submitted call. Its `cancellation` cancels the coroutine at its current `await`.

    :ivar over: whether a thread calls `done`, or has called it.
    :ivar awaited: whether a thread waits for the call, so that it cannot be withdrawn.
    """

    awaited: bool = field(default=False, kw_only=True)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    task: asyncio.Task[None] | None = None
    value: Any = _NOT_BEGUN
    over: bool = False
    timers: Sequence[timers.Timer] = ()
    #: The coroutine of `fn` while it runs.
    coroutine: Any = None
    _begun: bool = False
    _cancelled: bool = False
    #: Exceptions to raise in the coroutine. Each one needs a cancellation of the asyncio task.
    _pending: deque[BaseException] = field(default_factory=deque)

    # The thread of the loop calls the methods below.

    async def run(self) -> None:
        pid = forks.current_pid
        self._begun = True
        if self._pending and self.task is not None:
            self.task.cancel()
        if self.cancellation.cancelled:
            self.cancel()
        try:
            self.coroutine = self.fn(*self.args)
            self.value = await self._await_interruptibly(self.coroutine)
        except BaseException as error:
            self.value = ft.Failure.from_exception(error)
        self.coroutine = None
        forks.end_fork(pid, self.value)

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` at the current or next `await` of the coroutine."""
        self._pending.append(error)
        # An asyncio task that is cancelled before its first step never runs.
        if self._begun and self.task is not None:
            self.task.cancel()

    def cancel(self) -> None:
        """Cancel the coroutine at its current or next `await`.

        Idempotent: a coroutine that ignores the cancellation is not cancelled again.
        """
        if not self._cancelled:
            self._cancelled = True
            self.interrupt(asyncio.CancelledError())

    @types.coroutine
    def _await_interruptibly(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await `coroutine`. Replace cancellations of the task by the pending exceptions."""
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                awaited = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
            except StopIteration as stop:
                return stop.value
            value = thrown = None
            try:
                value = yield awaited
            except BaseException as error:
                thrown = error
            if not self._pending:
                continue
            thrown = self._pending.popleft()
            uncancel = getattr(self.task, "uncancel", int)
            if not isinstance(thrown, asyncio.CancelledError):
                uncancel()
            # asyncio merges simultaneous cancellations into one.
            if self._pending and self.task is not None:
                uncancel()
                self.task.cancel()


class EventLoop:
    """An event loop and its thread. The first call creates both.

    - `submit(fn, args, done)` runs `await fn(*args)` concurrently with all other calls.
    - The thread of the loop calls `done(value)` once, with the result of `fn` or a `Failure`,
      unless `withdraw` returned the call. `done` must return quickly: it blocks all calls.
    - A call that is cancelled before it begins ends immediately, with a `Failure` of `Cancelled`. A
      running call is cancelled at its current `await`.
    - After the soft limit, `SoftTimeLimitExceeded` is raised at the current `await`. After the hard
      limit, a separate thread calls `done` with a `Failure` of `TimeLimitExceeded`, and the
      coroutine is cancelled without waiting for its end.
    - After `stop`, the next call starts a new loop.

    Thread-safe. A loop that was not stopped ends with the interpreter. A call costs about 5 µs, a
    call of `run` 30 µs.
    """

    def __init__(self, name: str = "wbengine-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: deque[LoopCall] = deque()
        # Running calls. Only the thread of the loop uses this.
        self._live: dict[asyncio.Task[None], LoopCall] = {}
        # Calls that exceeded their hard limit and that the loop has not removed yet.
        self._overdue: set[LoopCall] = set()
        self._ending = self._winding_up = False

    def submit(
        self,
        fn: Function,
        args: tuple[Any, ...],
        done: Done,
        limit: TimeLimit = UNLIMITED,
        name: str | None = None,
        *,
        cancellation: Cancellation | None = None,
        always_begins: bool = False,
    ) -> LoopCall:
        """Run `await fn(*args)`, then call `done(value)` once; see `Pool.submit`.

        :raises RuntimeError: if the loop is being stopped.
        """
        call_args = fn, args, done, limit, cancellation or Cancellation()
        call = LoopCall(*call_args, name=name, always_begins=always_begins)
        self._put(call)
        return call

    def _put(self, call: LoopCall) -> None:
        # Before queueing: the token must not refer to a call that has ended.
        call.cancellation.on_cancel(functools.partial(self._cancel, call))
        with self._lock:
            if self._ending:
                raise RuntimeError(f"event loop {self._name!r} is stopped")
            loop = self._open() if self._loop is None else self._loop
            self._queue.append(call)
            if len(self._queue) == 1:  # Otherwise the loop is already notified.
                loop.call_soon_threadsafe(self._begin)
        if call.cancellation.cancelled:  # It was cancelled before it was in the queue.
            self._cancel(call)

    def run(
        self,
        fn: Function,
        *args: Any,
        cancellation: Cancellation | None = None,
        always_begins: bool = False,
    ) -> Any:
        """Submit a call, wait, and return the value or `Failure` of `await fn(*args)`.

        If an interrupt (Ctrl-C) ends the wait, the call is cancelled and its end is awaited.

        :raises RuntimeError: if called in the thread of the loop, which cannot wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"a coroutine in event loop {self._name!r} must await this call instead of"
                " waiting for it"
            )
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        interrupt = interrupts.current()
        call_args = fn, args, ended.put, UNLIMITED, cancellation or Cancellation()
        call = LoopCall(*call_args, always_begins=always_begins, awaited=True)
        try:
            self._put(call)
            if interrupt is None:
                return ended.get()
            # Interrupt the coroutine, not the waiting thread.
            with interrupt.redirecting(functools.partial(self._interrupt, call, ended)):
                return ended.get()
        except BaseException as error:
            if not isinstance(error, Exception):
                call.cancellation.left = True
            self._end_early(call, ended)
            raise

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await `coroutine` in the loop, and return its result or raise its exception."""
        try:
            value = self.run(lambda: coroutine)
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # `run` failed before the coroutine started.
        if isinstance(value, ft.Failure):
            value.reraise()
        return value

    def withdraw(self) -> list[LoopCall]:
        """Return all calls that have not begun, in order. Their `done` is never called.

        Calls of `run` stay, because a thread waits for each of them.
        """
        with self._lock:
            calls = [call for call in self._queue if not call.awaited]
            self._queue = deque(call for call in self._queue if call.awaited)
        return calls

    def abandon(self, selects: Callable[[LoopCall], bool]) -> None:
        """Mark (`left`) and cancel the running calls for which `selects(call)` is true.

        Their `done` is never called. Calls of `run` are not affected. Does not block.
        """
        self._soon(self._abandon_all, selects)

    def stop(self, timeout: float | None = None, cancel: bool = False) -> None:
        """Wait for all calls, cancel tasks that they left, and end the loop and its thread.

        With `cancel`, the calls are cancelled too. Idempotent. It does not wait if called in the
        thread of the loop, or if a call beyond its hard limit blocks the loop.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is not None:  # None: the loop never started, or is already ending.
                self._ending = True
                if cancel:
                    loop.call_soon_threadsafe(self._cancel_all)
                loop.call_soon_threadsafe(self._end_if_idle)
        if thread is None or thread is threading.current_thread():
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while thread.is_alive():
            remaining_seconds = (
                _GRACE_SECONDS
                if deadline is None
                else min(_GRACE_SECONDS, deadline - time.monotonic())
            )
            if remaining_seconds <= 0:
                return
            thread.join(remaining_seconds)
            if self._overdue:
                LOG.warning("event loop %r is blocked by an abandoned call", self._name)
                return

    def visit(self, act: Callable[[LoopCall], object]) -> None:
        """Call `act` with each running call soon, in the thread of the loop."""
        self._soon(lambda: [act(call) for call in self._live.values()])

    def _soon(self, act: Callable[..., object], *args: Any) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(act, *args)

    def _end_early(self, call: LoopCall, ended: queue.SimpleQueue[Any]) -> None:
        def cancel() -> None:
            self._begin()  # An interrupt of `_put` may have prevented this.
            if call.task is not None:
                call.task.cancel()
            else:
                ended.put(None)

        with self._lock:
            if self._loop is None:
                return
            self._loop.call_soon_threadsafe(cancel)
        ended.get()

    def _interrupt(
        self, call: LoopCall, ended: queue.SimpleQueue[Any], kind: type[BaseException]
    ) -> None:
        """Interrupt a call for which a thread waits, or give the call up after its hard limit.

        Takes no lock, because signal handlers call it.
        """
        error = kind()
        if isinstance(error, exceptions.TimeLimitExceeded):
            ended.put(ft.Failure.from_exception(error))
            self._soon(self._abandon, call)
        else:
            self._soon(call.interrupt, error)

    def _cancel(self, call: LoopCall) -> None:
        with self._lock:
            waits = call in self._queue
            if waits and not call.always_begins:
                self._queue.remove(call)
        if not waits:
            self._soon(call.cancel)
        elif not call.always_begins:  # Otherwise it is cancelled after it has begun.
            call.complete(call.cancelled_early())

    def _open(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        # A daemon, so that a loop that is not stopped does not keep the interpreter alive.
        thread = threads.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
        _LIVE.add(self)
        self._loop, self._thread = loop, thread
        try:
            thread.start()
        except BaseException:
            # If `ident` is set, an interrupt (Ctrl-C) occurred, and the thread runs.
            if thread.ident is None:
                self._loop = self._thread = None
                loop.close()
            raise
        return loop

    # The thread of the loop calls the methods below. The timer thread calls `_give_up`.

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not (loop.is_closed() or self._is_idle()):
                try:
                    loop.run_forever()
                except BaseException:  # For example, SystemExit in a task that a call left running.
                    LOG.exception("an error left event loop %r", self._name)
            if not loop.is_closed():
                self._winding_up = True
                _wind_up(loop)
        finally:
            with self._lock:
                if self._loop is loop:
                    self._loop = None
                    self._ending = self._winding_up = False
            loop.close()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            begun, self._queue = self._queue, deque()
        for call in begun:
            task = call.task = call.context.run(loop.create_task, call.run())
            self._live[task] = call
            task.add_done_callback(self._ended)
            if call.limit is not UNLIMITED:
                self._limit(call)

    def _limit(self, call: LoopCall) -> None:
        soft, hard = call.limit
        clock, due = timers.of_process(), list[timers.Timer]()
        call.timers = due
        if soft is not None:
            interrupt = functools.partial(call.interrupt, exceptions.SoftTimeLimitExceeded())
            due.append(clock.after(soft, functools.partial(self._soon, interrupt)))
        if hard is not None:
            call.cancellation.deadline = time.time() + hard
            due.append(clock.after(hard, functools.partial(self._give_up, call)))

    def _give_up(self, call: LoopCall) -> None:
        """End a call after its hard limit. Runs in the timer thread, as the loop may be blocked."""
        if not self._claim_end(call):
            return
        self._overdue.add(call)
        name, args = f"{self._name}-overdue", (call.overdue(),)
        threads.Thread(target=call.done, args=args, name=name, daemon=True).start()
        self._soon(self._abandon, call)

    def _claim_end(self, call: LoopCall) -> bool:
        with self._lock:
            if call.over:
                return False
            call.over = True
        for timer in call.timers:
            timers.of_process().cancel(timer)
        return True

    def _abandon(self, call: LoopCall) -> None:
        self._overdue.discard(call)
        if call.task is not None and self._live.pop(call.task, None) is not None:
            call.task.cancel()
            self._end_if_idle()

    def _abandon_all(self, selects: Callable[[LoopCall], bool]) -> None:
        for call in list(self._live.values()):
            if not call.awaited and selects(call) and self._claim_end(call):
                call.cancellation.left = True
                self._abandon(call)

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._live.pop(task, None)
        if call is None:
            return
        if self._claim_end(call):
            value = call.value
            if value is _NOT_BEGUN:
                value = ft.Failure.from_exception(asyncio.CancelledError())
            call.task = call.value = None
            call.complete(value)
        self._end_if_idle()

    def _cancel_all(self) -> None:
        for task in list(self._live):
            task.cancel()

    def _is_idle(self) -> bool:
        with self._lock:
            return self._ending and not self._live and not self._queue

    def _end_if_idle(self) -> None:
        if self._is_idle() and not self._winding_up:  # This method may be called twice.
            asyncio.get_running_loop().stop()


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    leftovers = asyncio.all_tasks(loop)
    for task in leftovers:
        task.cancel()

    async def end_leftovers() -> None:
        if leftovers:
            await asyncio.wait(leftovers, timeout=_GRACE_SECONDS)

    for step in (end_leftovers, loop.shutdown_asyncgens, loop.shutdown_default_executor):
        try:
            loop.run_until_complete(step())
        except BaseException:
            LOG.exception("an error left an event loop that is closing")
    for task in leftovers:
        if not task.done():
            LOG.warning("%r did not end after it was cancelled", task)
        elif not task.cancelled() and task.exception() is not None:
            LOG.warning("%r failed after it was cancelled", task, exc_info=task.exception())


_LIVE: weakref.WeakSet[EventLoop] = weakref.WeakSet()

#: The event loop of this process, for tasks that have no executor here.
of_process: Final = per_process.PerProcess(EventLoop)


def live_loops() -> list[EventLoop]:
    return list(_LIVE)


def stop_all(timeout: float = _EXIT_GRACE_SECONDS) -> None:
    for loop in list(_LIVE):
        loop.stop(timeout, cancel=True)


atexit.register(stop_all)
