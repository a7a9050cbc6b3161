"""An event loop in a thread of its own: where bodies of tasks that are coroutines run.

Whoever runs tasks has one `Loop`, which costs nothing until the first coroutine comes.  Coroutines
run all at once, in the order given, each as an `asyncio.Task` with a copy of the context of whoever
submitted it; what they raise (`SystemExit` and `CancelledError` included) is a value like any other
and harms neither the loop nor its neighbours.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from wbengine import alarms, exceptions, limits, running, watch
from wbengine._loop_calls import NOT_BEGUN, Done, Function, cancelled, overdue
from wbengine._loop_calls import Ticket as Ticket
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: Seconds that what coroutines left behind may take to end once it is cancelled.
_GRACE: Final = 5.0
#: The same for everything when the interpreter ends.
_LAST_GRACE: Final = 1.0


class Loop:
    """An event loop and its thread, both made when the first call comes.

    - `submit(fn, args, done)` runs `await fn(*args)` among all other calls.
    - `done(value)` is called exactly once for each call that `withdraw` did not hand back, in the
      loop's thread, with what `fn` returned or with the `Failure` that stands for it.  It should
      return quickly: all calls wait for it.
    - When a call's soft limit is over, `SoftTimeLimitExceeded` is raised where it waits.  When its
      hard limit is over, `done` is called with a `Failure` of `TimeLimitExceeded` in a thread of
      its own, and the call is cancelled; nobody waits for its end.
    - After `stop` the next call starts a new loop.

    All methods may be called from any thread.  A loop that nobody stopped ends with the
    interpreter.  A call costs about 5 µs, one that is waited for by `run` 30 µs.
    """

    def __init__(self, name: str = "wbengine-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: deque[Ticket] = deque()
        # Tasks by their tickets; touched by the loop's thread only.
        self._live: dict[asyncio.Task[None], Ticket] = {}
        # Given up, and the loop did not come to hear of it yet.
        self._overdue: set[Ticket] = set()
        self._ending = False
        self._winding_up = False

    def submit(
        self,
        fn: Function,
        args: tuple[Any, ...],
        done: Done,
        limit: limits.TimeLimit = limits.UNLIMITED,
    ) -> Ticket:
        """Run `await fn(*args)` some time, and then call `done(value)` once.

        :raises RuntimeError: the loop is being stopped.
        """
        ticket = Ticket(fn, args, done, limit)
        self.put(ticket)
        return ticket

    def put(self, ticket: Ticket) -> None:
        """As `submit`, for a call that was made before.

        :raises RuntimeError: the loop is being stopped.
        """
        with self._lock:
            if self._ending:
                raise RuntimeError(f"event loop {self._name!r} was stopped")
            loop = self._open() if self._loop is None else self._loop
            self._queue.append(ticket)
            if len(self._queue) == 1:  # else it was told already, and did not come to it yet
                loop.call_soon_threadsafe(self._begin)

    def run(self, fn: Function, *args: Any) -> Any:
        """`submit`, and wait: the value, or the `Failure`, of `await fn(*args)`.

        Where an interruption (Ctrl-C) ends the waiting, the call is cancelled, and its end awaited.

        :raises RuntimeError: called in the loop's own thread, which cannot wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"event loop {self._name!r} cannot wait for a coroutine of its own: await it"
            )
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        alarm = alarms.current()
        ticket = Ticket(fn, args, ended.put, interruptible=alarm is not None)
        call = args[0] if args else None
        diverted: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if alarm is not None:
            # Whoever waits for a coroutine is not interrupted: it is.
            diverted = alarm.diverting(functools.partial(self._ring, ticket, ended))
        try:
            with diverted, running.waiting(call, functools.partial(self.cancel, ticket)):
                self.put(ticket)
                if getattr(call, "is_cancelled", False):  # before anybody waited
                    self.cancel(ticket)
                return ended.get()
        except Exception:
            raise  # it could not be submitted
        except BaseException as error:
            leave = getattr(call, "leave", None)
            if leave is not None and not isinstance(error, GeneratorExit):
                leave()
            self._call_off(ticket, ended)
            raise

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What awaiting `coroutine` in the loop gives, or raises; the caller waits for it."""
        error: BaseException | None = None

        async def settle() -> Any:
            nonlocal error
            try:
                return await coroutine
            except BaseException as raised:
                error = raised

        try:
            found = self.run(settle)
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # the loop could not run it
        if error is not None:
            raise error
        if isinstance(found, ft.Failure):
            found.reraise()
        return found

    def _call_off(self, ticket: Ticket, ended: queue.SimpleQueue[Any]) -> None:
        """Cancel a call, if it got as far as to be one, and wait for its end."""

        def cancel() -> None:
            self._begin()  # whoever was interrupted may not have come to ask for that
            if ticket.task is not None:
                ticket.task.cancel()
            else:
                ended.put(None)

        with self._lock:
            if self._loop is None:
                return
            self._loop.call_soon_threadsafe(cancel)
        ended.get()

    def _ring(
        self, ticket: Ticket, ended: queue.SimpleQueue[Any], kind: type[BaseException]
    ) -> None:
        """Interrupt a call that somebody waits for, or give it up.

        Any thread; in a handler of signals, too: nothing here takes the lock.
        """
        error, loop = kind(), self._loop
        if isinstance(error, exceptions.TimeLimitExceeded):
            ended.put(ft.Failure.from_exception(error))
        act: Callable[[], object] = functools.partial(self._interrupt, ticket, error)
        if loop is None:
            if ticket.expect(error):
                return  # it is not submitted yet
            act, loop = ticket.remind, self._loop
        if isinstance(error, exceptions.TimeLimitExceeded):
            act = functools.partial(self._abandon, ticket)
        try:
            if loop is not None:
                loop.call_soon_threadsafe(act)
        except RuntimeError:
            pass  # the loop has ended

    def cancel(self, ticket: Ticket) -> None:
        """One that has not begun ends here and now, with a `Failure` of `Cancelled`; unless its
        call goes on with what was begun before (`recovered`): that begins, to hear of it.

        One that runs is told so (`cancelled`), and cancelled where it waits, as tasks of asyncio
        are; a body that goes on all the same is not told again.  Idempotent.
        """
        if ticket.cancelled:
            return
        ticket.cancelled = True
        with self._lock:
            waits = ticket in self._queue
            if waits and getattr(ticket.args[0] if ticket.args else None, "recovered", False):
                return  # it is cancelled once it has begun
            if waits:
                self._queue.remove(ticket)
            elif self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(ticket.cancel)
        if waits:
            ticket.done(cancelled())

    def withdraw(self) -> list[Ticket]:
        """Take back every call that has not begun, in order; their `done` is never called."""
        with self._lock:
            tickets = list(self._queue)
            self._queue.clear()
        return tickets

    def leave(self, which: Callable[[Ticket], bool]) -> None:
        """Let go of the calls for which `which(ticket)` is true: their `done` is never called.

        They are told so (`left`), and cancelled where they wait; nobody waits for their end.  What
        has ended, or not begun, is left alone.  Returns at once.
        """
        with self._lock:
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._leave, which)

    def stop(self, timeout: float | None = None, cancel: bool = False) -> None:
        """Let every call end, cancel what they left behind, end the loop, and wait for it.

        With `cancel`, the calls themselves are cancelled too.  Idempotent.  Called in the loop's
        own thread, it does not wait.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is not None:  # else somebody stopped it already, and it is about to end
                self._ending = True
                if cancel:
                    loop.call_soon_threadsafe(self._cancel_all)
                loop.call_soon_threadsafe(self._end_if_idle)
        if thread is not None and thread is not threading.current_thread():
            self._wait_for(thread, timeout)

    def _wait_for(self, thread: threading.Thread, timeout: float | None) -> None:
        """Wait for its end, but not for what was given up and does not let go of the loop."""
        until = None if timeout is None else time.monotonic() + timeout
        stuck: set[Ticket] = set()
        while thread.is_alive():
            left = _GRACE if until is None else min(_GRACE, until - time.monotonic())
            thread.join(max(0.0, left))
            if until is not None and time.monotonic() >= until:
                return
            if stuck & self._overdue:
                LOG.warning("event loop %r is blocked by what was given up", self._name)
                return
            stuck = set(self._overdue)

    # In the loop's thread, but for the first one.

    def _open(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        # A daemon: a loop that nobody stopped must not keep the interpreter alive.
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
        for ticket in self.withdraw():
            task = ticket.task = ticket.context.run(loop.create_task, ticket.run())
            self._live[task] = ticket
            task.add_done_callback(self._ended)
            if ticket.limit is not limits.UNLIMITED:
                self._limit(ticket)

    def _limit(self, ticket: Ticket) -> None:
        soft, hard = ticket.limit
        ticket.timers = timers = list[Callable[[], object]]()
        if soft is not None:
            loop = asyncio.get_running_loop()
            error = exceptions.SoftTimeLimitExceeded()
            timers.append(loop.call_later(soft, ticket.interrupt, error).cancel)
        if hard is not None:
            ticket.deadline = time.time() + hard
            clock = watch.of_process()
            timer = clock.after(hard, functools.partial(self._give_up, ticket))
            timers.append(functools.partial(clock.call_off, timer))

    def _interrupt(self, ticket: Ticket, error: BaseException) -> None:
        self._begin()
        if ticket.task is None or ticket.task in self._live:  # not submitted yet, or not over
            ticket.interrupt(error)

    def _give_up(self, ticket: Ticket) -> None:
        """Its hard limit is over (in the thread of the watch: the loop may be blocked)."""
        with self._lock:
            if ticket.over:
                return
            ticket.over = True
            loop = self._loop
            self._overdue.add(ticket)
        args = (overdue(ticket.limit),)
        name = f"{self._name}-overdue"
        threading.Thread(target=ticket.done, args=args, name=name, daemon=True).start()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._abandon, ticket)
            except RuntimeError:
                pass  # it ended just now

    def _abandon(self, ticket: Ticket) -> None:
        """Nobody waits for its end any more."""
        self._begin()
        with self._lock:
            self._overdue.discard(ticket)
        task = ticket.task
        if task is None:  # not submitted yet
            ticket.cancel()
        elif self._live.pop(task, None) is not None:
            task.cancel()
            self._end_if_idle()

    def _leave(self, which: Callable[[Ticket], bool]) -> None:
        for ticket in list(self._live.values()):
            if not which(ticket):
                continue
            with self._lock:
                known, ticket.over = ticket.over, True
            if not known:
                ticket.left = True
                for call_off in ticket.timers:
                    call_off()
                self._abandon(ticket)

    def _ended(self, task: asyncio.Task[None]) -> None:
        ticket = self._live.pop(task, None)
        if ticket is None:
            return  # it was given up
        for call_off in ticket.timers:
            call_off()
        with self._lock:
            known, ticket.over = ticket.over, True
        if not known:
            self._report(ticket)
        self._end_if_idle()

    def _report(self, ticket: Ticket) -> None:
        value = ticket.value
        if value is NOT_BEGUN:
            value = ft.Failure.from_exception(asyncio.CancelledError())
        ticket.task = ticket.value = None
        try:
            ticket.done(value)
        except BaseException:
            LOG.exception("the receiver of the result of %s failed", ticket.fn)
        # It may be known for long to whoever may cancel it.
        ticket.args, ticket.done = (), _ignore

    def _cancel_all(self) -> None:
        for task in list(self._live):
            task.cancel()

    def _is_idle(self) -> bool:
        with self._lock:
            return self._ending and not self._live and not self._queue

    def _end_if_idle(self) -> None:
        if self._is_idle() and not self._winding_up:  # somebody may have said so twice
            asyncio.get_running_loop().stop()


def _ignore(value: Any) -> None:
    """It was told already."""


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


_LIVE: weakref.WeakSet[Loop] = weakref.WeakSet()

# The loop of a process that runs tasks for another one, and that process.
_of_process: tuple[int, Loop] | None = None
_lock = threading.Lock()


def of_process() -> Loop:
    """The one loop of a process whose tasks have no executor of their own here."""
    global _of_process
    with _lock:
        if _of_process is None or _of_process[0] != os.getpid():  # a thread is not inherited
            _of_process = os.getpid(), Loop()
        return _of_process[1]


def stop_all(timeout: float = _LAST_GRACE) -> None:
    """End every loop of this process, as far as that is possible in `timeout` seconds each."""
    for loop in list(_LIVE):
        loop.stop(timeout, cancel=True)


atexit.register(stop_all)
