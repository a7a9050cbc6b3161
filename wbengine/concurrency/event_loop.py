"""An event loop in a thread of its own: where bodies of tasks that are coroutines run.

Each place where tasks run has one `EventLoop`, which costs nothing until the first coroutine comes.
Coroutines run all at once, in the order given, each as an `asyncio.Task` with a copy of its
submitter's context; what they raise (`SystemExit` and `CancelledError` included) is a value like
any other and harms neither the loop nor its neighbours.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import inspect
import logging
import os
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
from wbengine.concurrency import interrupts, per_process, timers
from wbengine.concurrency.call import Call, Done, end_fork
from wbengine.concurrency.cancellation import Cancellation
from wbengine.concurrency.limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

__all__ = ["EventLoop", "LoopCall", "of_process", "stop_all"]

LOG = logging.getLogger("wbengine.loops")

Function = Callable[..., Coroutine[Any, Any, Any]]

#: Seconds that what coroutines left behind may take to end once it is cancelled.
_GRACE: Final = 5.0
#: The same for everything when the interpreter ends.
_LAST_GRACE: Final = 1.0

#: The value of a call that was cancelled before its first step.
_NOT_BEGUN: Final = object()


@dataclass(slots=True, eq=False, repr=False)
class LoopCall(Call):
    """One submitted call.  Its `cancellation` cancels the coroutine where it waits.

    `over`: a thread calls `done`, or did.  `awaited`: a thread waits for it, so that it has to end
    here.
    """

    awaited: bool = field(default=False, kw_only=True)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    task: asyncio.Task[None] | None = None
    value: Any = _NOT_BEGUN
    over: bool = False
    timers: Sequence[timers.Timer] = ()
    _begun: bool = False
    _cancelled: bool = False
    #: What is to be raised in the coroutine, each by one cancellation of its task.
    _pending: deque[BaseException] = field(default_factory=deque)

    # In the loop's thread.

    async def run(self) -> None:
        pid = os.getpid()
        self._begun = True
        if self._pending and self.task is not None:
            self.task.cancel()
        if self.cancellation.cancelled:
            self.cancel()
        try:
            self.value = await self._interruptibly(self.fn(*self.args))
        except BaseException as error:
            self.value = ft.Failure.from_exception(error)
        end_fork(pid)

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` where the coroutine waits, or as soon as it does."""
        self._pending.append(error)
        # A task of asyncio that is cancelled before its first step never makes one.
        if self._begun and self.task is not None:
            self.task.cancel()

    def cancel(self) -> None:
        """Cancel the coroutine where it waits, or as soon as it does.

        Idempotent: one that goes on all the same is not told again.
        """
        if not self._cancelled:
            self._cancelled = True
            self.interrupt(asyncio.CancelledError())

    @types.coroutine
    def _interruptibly(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await `coroutine`; what interrupts its task is raised in it as what it is."""
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                found = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
            except StopIteration as stop:
                return stop.value
            value = thrown = None
            try:
                value = yield found
            except BaseException as error:
                thrown = error
            if not self._pending:
                continue
            thrown = self._pending.popleft()
            # Since Python 3.11, tasks count how often they were cancelled.
            uncancel = getattr(self.task, "uncancel", int)
            if not isinstance(thrown, asyncio.CancelledError):
                uncancel()
            if self._pending and self.task is not None:  # what is told twice at once is heard once
                uncancel()
                self.task.cancel()


class EventLoop:
    """An event loop and its thread, both made when the first call comes.

    - `submit(fn, args, done)` runs `await fn(*args)` among all other calls.
    - `done(value)` is called exactly once for each call that `withdraw` did not hand back, in the
      loop's thread, with what `fn` returned or with the `Failure` that stands for it.  It should
      return quickly: all calls wait for it.
    - A call that is cancelled before it begins ends here and now, with a `Failure` of `Cancelled`.
      One that runs is cancelled where it waits, as tasks of asyncio are.
    - When a call's soft limit is over, `SoftTimeLimitExceeded` is raised where it waits.  When its
      hard limit is over, `done` is called with a `Failure` of `TimeLimitExceeded` in a thread of
      its own, and the call is cancelled; its end is not waited for.
    - After `stop` the next call starts a new loop.

    All methods may be called from any thread.  A loop that was never stopped ends with the
    interpreter.  A call costs about 5 µs, one that is waited for by `run` 30 µs.
    """

    def __init__(self, name: str = "wbengine-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: deque[LoopCall] = deque()
        # Those that run; touched by the loop's thread only.
        self._live: dict[asyncio.Task[None], LoopCall] = {}
        # Given up, and the loop did not come to hear of it yet.
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
        """Run `await fn(*args)` some time, and then call `done(value)` once; see `Pool.submit`.

        :raises RuntimeError: the loop is being stopped.
        """
        told = fn, args, done, limit, cancellation or Cancellation()
        call = LoopCall(*told, name=name, always_begins=always_begins)
        self._put(call)
        return call

    def _put(self, call: LoopCall) -> None:
        # Before it is queued: its token must not keep a call that has ended already.
        call.cancellation.on_cancel(functools.partial(self._cancel, call))
        with self._lock:
            if self._ending:
                raise RuntimeError(f"event loop {self._name!r} was stopped")
            loop = self._open() if self._loop is None else self._loop
            self._queue.append(call)
            if len(self._queue) == 1:  # else it was told already, and did not come to it yet
                loop.call_soon_threadsafe(self._begin)
        if call.cancellation.cancelled:  # before it was there to be found
            self._cancel(call)

    def run(
        self,
        fn: Function,
        *args: Any,
        cancellation: Cancellation | None = None,
        always_begins: bool = False,
    ) -> Any:
        """`submit`, and wait: the value, or the `Failure`, of `await fn(*args)`.

        Where an interruption (Ctrl-C) ends the waiting, the call is cancelled, and its end awaited.

        :raises RuntimeError: called in the loop's own thread, which cannot wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"event loop {self._name!r} cannot wait for a coroutine of its own: await it"
            )
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        interrupt = interrupts.current()
        told = fn, args, ended.put, UNLIMITED, cancellation or Cancellation()
        call = LoopCall(*told, always_begins=always_begins, awaited=True)
        try:
            self._put(call)
            if interrupt is None:
                return ended.get()
            # The coroutine is interrupted, not the thread that waits for it.
            with interrupt.redirecting(functools.partial(self._interrupt, call, ended)):
                return ended.get()
        except BaseException as error:
            if not isinstance(error, Exception):
                call.cancellation.left = True
            self._end_early(call, ended)
            raise

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What awaiting `coroutine` in the loop gives, or raises; the caller waits for it."""
        try:
            found = self.run(lambda: coroutine)
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # the loop could not run it
        if isinstance(found, ft.Failure):
            found.reraise()
        return found

    def withdraw(self) -> list[LoopCall]:
        """Take back every call that has not begun, in order; their `done` is never called.

        Those of `run` stay: a thread waits for each.
        """
        with self._lock:
            calls = [call for call in self._queue if not call.awaited]
            self._queue = deque(call for call in self._queue if call.awaited)
        return calls

    def abandon(self, which: Callable[[LoopCall], bool]) -> None:
        """Let go of the calls for which `which(call)` is true: their `done` is never called.

        They are told so (`left`), and cancelled where they wait; their end is not waited for.  What
        has ended, or not begun, and calls of `run` are left alone.  Returns at once.
        """
        self._soon(self._abandon_all, which)

    def stop(self, timeout: float | None = None, cancel: bool = False) -> None:
        """Let every call end, cancel what they left behind, end the loop, and wait for it.

        With `cancel`, the calls themselves are cancelled too.  Idempotent.  Called in the loop's
        own thread, it does not wait; nor does it for a loop that is blocked by a call whose hard
        limit is over.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is not None:  # else it was stopped already, and is about to end
                self._ending = True
                if cancel:
                    loop.call_soon_threadsafe(self._cancel_all)
                loop.call_soon_threadsafe(self._end_if_idle)
        if thread is None or thread is threading.current_thread():
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while thread.is_alive():
            left = _GRACE if deadline is None else min(_GRACE, deadline - time.monotonic())
            if left <= 0:
                return
            thread.join(left)
            if self._overdue:
                LOG.warning("event loop %r is blocked by what was given up", self._name)
                return

    def _soon(self, act: Callable[..., object], *args: Any) -> None:
        """Call it in the loop's thread, unless the loop has ended."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(act, *args)

    def _end_early(self, call: LoopCall, ended: queue.SimpleQueue[Any]) -> None:
        """Cancel a call, if it got as far as to be one, and wait for its end."""

        def cancel() -> None:
            self._begin()  # an interruption of `_put` may have left that out
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
        """Interrupt a call that a thread waits for, or give it up.

        Any thread; in a handler of signals, too: nothing here takes the lock.
        """
        error = kind()
        if isinstance(error, exceptions.TimeLimitExceeded):
            ended.put(ft.Failure.from_exception(error))
            self._soon(self._abandon, call)
        else:
            self._soon(call.interrupt, error)

    def _cancel(self, call: LoopCall) -> None:
        """Its end was asked for; any thread."""
        with self._lock:
            waits = call in self._queue
            if waits and not call.always_begins:
                self._queue.remove(call)
        if not waits:
            self._soon(call.cancel)
        elif not call.always_begins:  # else it is cancelled once it has begun
            call.complete(call.cancelled_early())

    def _open(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        # A daemon: a loop that was never stopped must not keep the interpreter alive.
        thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
        _LIVE.add(self)
        self._loop, self._thread = loop, thread
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:  # else it was an interruption (Ctrl-C), and the thread runs
                self._loop = self._thread = None
                loop.close()
            raise
        return loop

    # In the loop's thread, but for `_give_up`.

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not (loop.is_closed() or self._is_idle()):
                try:
                    loop.run_forever()
                except BaseException:  # SystemExit in a task that a call left behind
                    LOG.exception("something ran out of event loop %r", self._name)
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
        """Its hard limit is over (in the thread for timers: the loop may be blocked)."""
        if not self._claim_end(call):
            return
        self._overdue.add(call)
        name, args = f"{self._name}-overdue", (call.overdue(),)
        threading.Thread(target=call.done, args=args, name=name, daemon=True).start()
        self._soon(self._abandon, call)

    def _claim_end(self, call: LoopCall) -> bool:
        """Whether the caller is the one who calls `done` of the call."""
        with self._lock:
            if call.over:
                return False
            call.over = True
        for timer in call.timers:
            timers.of_process().cancel(timer)
        return True

    def _abandon(self, call: LoopCall) -> None:
        """Its end is not waited for any more."""
        self._overdue.discard(call)
        if call.task is not None and self._live.pop(call.task, None) is not None:
            call.task.cancel()
            self._end_if_idle()

    def _abandon_all(self, which: Callable[[LoopCall], bool]) -> None:
        for call in list(self._live.values()):
            if not call.awaited and which(call) and self._claim_end(call):
                call.cancellation.left = True
                self._abandon(call)

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._live.pop(task, None)
        if call is None:
            return  # it was given up
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
        if self._is_idle() and not self._winding_up:  # it may be said twice
            asyncio.get_running_loop().stop()


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what coroutines left behind, and let the loop give back what it holds."""
    leftovers = asyncio.all_tasks(loop)
    for task in leftovers:
        task.cancel()

    async def end_leftovers() -> None:
        if leftovers:
            await asyncio.wait(leftovers, timeout=_GRACE)

    for step in (end_leftovers, loop.shutdown_asyncgens, loop.shutdown_default_executor):
        try:
            loop.run_until_complete(step())
        except BaseException:
            LOG.exception("something ran out of an event loop that ends")
    for task in leftovers:
        if not task.done():
            LOG.warning("%r does not end, although it was cancelled", task)
        elif not task.cancelled() and task.exception() is not None:
            LOG.warning("%r failed when it was cancelled", task, exc_info=task.exception())


_LIVE: weakref.WeakSet[EventLoop] = weakref.WeakSet()

#: The one loop of a process whose tasks have no executor of their own here.
of_process: Final = per_process.PerProcess(EventLoop)


def stop_all(timeout: float = _LAST_GRACE) -> None:
    """End every loop of this process, as far as that is possible in `timeout` seconds each."""
    for loop in list(_LIVE):
        loop.stop(timeout, cancel=True)


atexit.register(stop_all)
