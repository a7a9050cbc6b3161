"""Pools of threads, and what all pools share: a queue of calls, and slots that make them."""

from __future__ import annotations

import abc
import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine.concurrency import interrupts, timers
from wbengine.concurrency.call import Call, Done, end_fork
from wbengine.concurrency.cancellation import Cancellation
from wbengine.concurrency.limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ExternalPool", "Pool", "PoolCall", "SoloPool", "ThreadPool"]

LOG = logging.getLogger("wbengine.pools")

#: The states of a call, in this order.  It is OVER as soon as a thread is to call `done`.
QUEUED: Final = 0
RUNNING: Final = 1
OVER: Final = 2
# Of an external pool: it may run all the same, but does not end without having begun.
_WITHDRAWN: Final = 3

OnEvent = Callable[[str, dict[str, Any]], None]

#: Seconds that a thread has to come back once what it waited for was given up.
_GRACE: Final = 1.0
#: Seconds that calls which run when the interpreter ends have to finish.
_EXIT_GRACE: Final = 2.0
#: Seconds between two looks at whether a thread that is waited for was lost.
_JOIN_PERIOD: Final = 0.1


@dataclass(slots=True, eq=False, repr=False)
class PoolCall(Call):
    """One submitted call.  Calling it reports an event; the call in a thread is given it as `emit`.

    `cancellation` tells the call that it is to end, and its deadline while it runs.
    `always_begins`: it begins also when it was cancelled before, to hear of that.
    """

    pool: Pool | ExternalPool = field(kw_only=True)
    on_event: OnEvent | None = field(kw_only=True)
    state: int = field(default=QUEUED, init=False)
    #: Where it runs, for its pool.
    slot: Any = field(default=None, init=False)

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if self.limit is UNLIMITED:
            self._report(event_type, details)
        else:
            with interrupts.masked():
                self._report(event_type, details)

    def _report(self, event_type: str, details: dict[str, Any]) -> None:
        on_event = self.on_event
        if on_event is None:
            return
        try:
            on_event(event_type, details)
        except Exception:
            LOG.exception("the receiver of event %r of %s failed", event_type, self)

    def cancel(self, grace: float | None = None) -> None:
        """Let the call come to an end soon; any thread.  Idempotent.

        One that has not started ends here and now, unless it `always_begins`: `done` is called with
        a `Failure` of `Cancelled`.  One that runs is told so (`cancellation`, `Task.cancelled`).
        If its process is one of its own, and `grace` seconds later (None: never) it still runs,
        that is killed, and the `Failure` is one of `Cancelled` too.  However else it ends counts.
        """
        self.pool.cancel(self, grace)

    def started(self) -> None:
        """Note when its hard limit ends it."""
        if self.limit.hard is not None:
            self.cancellation.deadline = time.time() + self.limit.hard


def worker_lost(message: str) -> ft.Failure:
    """Stands for a call that nobody makes any more."""
    return ft.Failure.from_exception(exceptions.WorkerLost(message))


class Slot:
    """A place where one call at a time runs: by default, the thread that serves it.

    Used by that thread only, but for `kill` and `cancel`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether it needs a `recycle` before it makes another call.
        self.exhausted = False
        self.thread: threading.Thread | None = None
        #: Its thread waits for this while there is nothing to do; released to wake it.
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        #: The process that its thread was started in.
        self.owner_pid = os.getpid()

    def open(self) -> None:
        """Acquire in advance what `run` needs."""

    def run(self, call: PoolCall) -> Any:
        """Run the call and return its value or `Failure`; never raises."""
        try:
            return call.fn(*call.args, call)
        except BaseException as error:
            return ft.Failure.from_exception(error)
        finally:
            end_fork(self.owner_pid)
            call.on_event = None  # threads that outlive the call have nothing to report any more

    def run_limited(self, call: PoolCall) -> Any:
        """`run`, for a call that has a limit."""
        return self.run(call)

    def recycle(self) -> None:
        """It is `exhausted`, and its last call is complete."""

    def cancel(self, call: PoolCall, grace: float | None) -> None:
        """The call was cancelled while it ran."""

    def kill(self) -> None:
        """End what runs, from any thread."""

    def close(self) -> None:
        """Give back what the slot holds."""


class Pool(abc.ABC):
    """The queue, the threads of the slots, and their ends.  Any thread may call."""

    #: Whether its threads are its own: nobody else interrupts them, or calls are made in them.
    private = True

    def __init__(self, size: int, *, name: str = "wbengine") -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size of a pool must be a whole number of at least 1, not {size!r}")
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[PoolCall] = deque()
        # How many calls wait or run; those that were cancelled stay in the queue, and do not count.
        self._open = 0
        self._slots: list[Slot] = []
        # Those that serve, until they have ended or are lost.
        self._threads: set[threading.Thread] = set()
        # Those that wait, the last is woken first: it makes all short calls.  Is one on its way?
        self._idle: list[Slot] = []
        self._waking = False
        # Threads that are in `done`, and look for the next call after that.
        self._completing: set[int] = set()
        self._lost = 0
        self._eager = False
        self._stopping = False
        self._killed = False
        _LIVE.add(self)

    @property
    def size(self) -> int:
        """How many calls can run at once."""
        return self._size

    @property
    def idle(self) -> int:
        """How many more calls would start at once.

        A slot counts as idle again just before the `done` of its call is called.
        """
        return max(0, self._size - self._open)

    @property
    def unfinished(self) -> int:
        """How many calls wait or run."""
        return self._open

    @property
    def lost(self) -> int:
        """How many threads were given up so far: their calls ran on when their hard limit was over.

        Each was replaced; what it still does, and what it returns, counts no more.
        """
        return self._lost

    def start(self) -> None:
        """Start all slots now; returns at once, calls may be submitted before they are ready."""
        with self._lock:
            if self._stopping:
                raise RuntimeError(f"pool {self._name!r} was stopped")
            self._eager = True
            while len(self._slots) < self._size:
                self._add_slot()

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        done: Done,
        on_event: OnEvent | None = None,
        limit: TimeLimit = UNLIMITED,
        name: str | None = None,
        *,
        cancellation: Cancellation | None = None,
        grace: float | None = None,
        always_begins: bool = False,
        lazily: bool = False,
    ) -> PoolCall:
        """Run `fn(*args, emit)` some time; `name` is that of its task, for people.

        `cancellation`: what the call is cancelled by, with that `grace`, and told of it; without
        it, it gets one of its own, for `PoolCall.cancel`.  `always_begins`: see there.  `lazily`:
        the `done` that submits it returns at once, so that its slot makes the call, and no other is
        woken for it.

        :raises RuntimeError: the pool was stopped.
        """
        told = fn, args, done, limit, cancellation or Cancellation()
        call = PoolCall(*told, name=name, always_begins=always_begins, pool=self, on_event=on_event)
        if cancellation is not None:  # one that is cancelled already ends here
            cancellation.on_cancel(
                call.cancel if grace is None else functools.partial(call.cancel, grace)
            )
        with self._lock:
            self._open += 1
            if call.state == OVER:  # cancelled, and told so
                return call
            if self._stopping:
                self._open -= 1
                call.state = OVER
                raise RuntimeError(f"pool {self._name!r} was stopped")
            self._queue.append(call)
            if not self._waking and not (lazily and self.in_done):
                self._wake()
        return call

    @property
    def in_done(self) -> bool:
        """Whether this is a `done` that asks, in the thread of its slot."""
        return threading.get_ident() in self._completing

    @property
    def has_more(self) -> bool:
        """Whether the slot whose `done` asks makes another call then."""
        return bool(self._queue) and self.in_done

    def call_others(self) -> None:
        """The `done` that submitted something lazily takes its time."""
        with self._lock:
            self._wake()

    def withdraw(self) -> list[PoolCall]:
        """Take back every call that has not started, in order; their `done` is never called."""
        with self._lock:
            calls = [call for call in self._queue if call.state == QUEUED]
            for call in calls:
                call.state = OVER
            self._queue.clear()
            self._open -= len(calls)
        return calls

    def cancel(self, call: PoolCall, grace: float | None = None) -> None:
        """See `PoolCall.cancel`."""
        with self._lock:
            state, slot = call.state, call.slot
            if early := state == QUEUED and not call.always_begins:
                # It stays in the queue, where looking for it would take long.
                call.state = OVER
                self._open -= 1
        if state == OVER:
            return
        call.cancellation.cancel()
        if early:
            call.complete(call.cancelled_early())
        elif slot is not None:
            slot.cancel(call, grace)

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        """Accept nothing more, finish what was submitted, and end the slots.  Idempotent.

        Idle slots end at once.  With `kill`, running processes are killed (threads cannot be: their
        calls finish) and calls that have not started fail; a later `stop(kill=True)` hastens an
        earlier `stop()`.  With `wait`, returns when every `done` has returned and all slots
        have ended; called from a `done`, it does not wait for that slot.  Nothing waits for a
        thread that is lost.
        """
        with self._lock:
            self._stopping = True
            self._killed = self._killed or kill
            slots = list(self._slots)
            while self._idle:
                self._wake_last()
        if kill:
            for slot in slots:
                slot.kill()
        if wait:
            self.join(None)
        _LIVE.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join(self, timeout: float | None) -> None:
        """Wait until nothing serves any more but the thread that asks."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._threads = {thread for thread in self._threads if thread.is_alive()}
                others = self._threads - {threading.current_thread()}
            left = _JOIN_PERIOD if deadline is None else deadline - time.monotonic()
            if not others or left <= 0:
                return
            others.pop().join(min(left, _JOIN_PERIOD))

    @abc.abstractmethod
    def _make_slot(self, name: str) -> Slot: ...

    def _add_slot(self) -> None:
        slot = self._make_slot(f"{self._name}-{len(self._slots)}")
        # First: what an interruption leaves must not look like one that is served.
        self._start_thread(slot)
        self._slots.append(slot)

    def _start_thread(self, slot: Slot, overdue: PoolCall | None = None) -> None:
        """Give a slot a thread."""
        # Daemon threads: an idle pool that nobody stopped must not keep the interpreter alive.
        thread = threading.Thread(
            target=self._serve, args=(slot, overdue), name=slot.name, daemon=True
        )
        slot.thread = thread
        thread.start()
        self._threads.add(thread)

    def _serve(self, slot: Slot, overdue: PoolCall | None = None) -> None:
        """The life of a thread; `overdue` is the call with which the thread before it was lost."""
        slot.owner_pid = os.getpid()
        kept = True
        try:
            if overdue is not None:
                overdue.complete(overdue.overdue())
            elif self._eager:
                slot.open()
            overdue = None
            while kept and (call := self._take(slot)) is not None:
                kept = self._make(slot, call)
                del call
        finally:
            if kept:
                slot.close()
                with self._lock:
                    self._leave_idle(slot)  # interrupted while it waited
                self.call_others()

    def _make(self, slot: Slot, call: PoolCall) -> bool:
        """Make a call; False: this thread was given up meanwhile."""
        if self._killed:
            value: Any = worker_lost(f"pool {self._name!r} was stopped before {call} started")
        elif call.limit is UNLIMITED:
            value = slot.run(call)
        else:
            try:
                call.started()
                value = slot.run_limited(call)
            except Exception as error:  # such as limits that are no numbers: not the slot's fault
                value = ft.Failure.from_exception(error)
        with self._lock:
            if call.state == OVER:
                return False
            call.state = OVER
            call.slot = None
            self._open -= 1
        self._completing.add(me := threading.get_ident())
        try:
            call.complete(value)
        finally:
            self._completing.discard(me)
        if slot.exhausted:
            self.call_others()
            slot.recycle()
        return True

    def _take(self, slot: Slot) -> PoolCall | None:
        woken = False
        while True:
            with self._lock:
                if woken:
                    self._leave_idle(slot)
                queue = self._queue
                while queue:
                    call = queue.popleft()
                    if call.state == QUEUED:
                        call.state = RUNNING
                        call.slot = slot
                        self._wake()
                        return call
                if self._stopping:
                    return None
                self._idle.append(slot)
            woken = slot.wakeup.acquire()

    def _wake(self) -> None:
        """Let a slot look at the queue, one that waits or a new one, unless one is on its way: it
        lets the next one look when it has taken something.  To wake all at once would cost more
        than short calls do.
        """
        if self._waking or not self._queue:
            return
        if self._idle:
            self._wake_last()
            self._waking = True
        elif len(self._slots) < self._size:
            self._add_slot()

    def _wake_last(self) -> None:
        # Wherever an interruption strikes: one that is woken twice looks twice, none is forgotten.
        wakeup = self._idle[-1].wakeup
        if wakeup.locked():
            wakeup.release()
        self._idle.pop()

    def _leave_idle(self, slot: Slot) -> None:
        """It does not wait any more."""
        self._waking = False
        if slot in self._idle:
            self._idle.remove(slot)


class ThreadPool(Pool):
    """`size` threads of this process.

    When a call's soft limit is over, `SoftTimeLimitExceeded` is raised in its thread between two
    steps of Python code, as soon as it is not waiting in C: best effort, for it may come at the
    wrong moment, as Ctrl-C may.  When its hard limit is over, it fails at once with
    `TimeLimitExceeded`; its thread is lost (`lost`, and one line in the log) and another takes its
    place.  In the lost one, `TimeLimitExceeded` is raised too; what it returns is dropped.

    Coroutines that a call waits for (`EventLoop.run`) are interrupted themselves, and cancelled
    when the hard limit is over: then no thread is lost.
    """

    def _make_slot(self, name: str) -> Slot:
        return _Thread(name, self)

    def lose(self, slot: Slot, call: PoolCall) -> bool:
        """Give up the thread that runs a call; False: the call is over."""
        with self._lock:
            if call.state != RUNNING:
                return False
            call.state = OVER
            call.slot = None
            self._open -= 1
            self._lost += 1
        LOG.warning(
            "thread %s of pool %r is lost: it still ran %s when the hard limit of %g s was over",
            slot.name,
            self._name,
            call,
            call.limit.hard or 0.0,
        )
        with self._lock:
            if slot.thread is not None:
                self._threads.discard(slot.thread)
            try:
                self._start_thread(slot, call)
                return True
            except RuntimeError:  # no more threads
                self._slots.remove(slot)
        call.complete(call.overdue())
        return True


class SoloPool(ThreadPool):
    """One slot: calls run in the thread that calls `serve`, as they come.

    Limits are those of `ThreadPool`, but if that is the main thread the soft one is raised by a
    signal, and interrupts most of what waits in C.  If the thread is lost, another one goes on.
    """

    private = False

    def __init__(self, *, name: str = "wbengine") -> None:
        super().__init__(1, name=name)
        self._slots.append(self._make_slot(f"{name}-solo"))

    def serve(self) -> None:
        """Make the calls that are submitted, in this thread, until `stop` and the last one's end.

        :raises RuntimeError: another thread serves, or served, the pool.
        """
        slot, me = self._slots[0], threading.current_thread()
        with self._lock:
            if slot.thread is not None:
                raise RuntimeError(f"pool {self._name!r} is served by {slot.thread.name} already")
            slot.thread = me
            self._threads.add(me)
        interrupts.handle_signal()
        try:
            self._serve(slot)
        finally:
            with self._lock:
                self._threads.discard(me)
        self.join(None)  # if this thread was lost, another one serves


class _Thread(Slot):
    def __init__(self, name: str, pool: ThreadPool) -> None:
        super().__init__(name)
        self._pool = pool

    def run_limited(self, call: PoolCall) -> Any:
        return interrupts.limited(
            call.limit, self.run, (call,), functools.partial(self._expire, call)
        )

    def _expire(self, call: PoolCall, interrupt: interrupts.Interrupt) -> None:
        """The hard limit is over (in the thread for timers)."""
        if interrupt.redirected:
            # What it waits for is given up; the thread comes back by itself, unless it waits again.
            interrupt.deliver(exceptions.TimeLimitExceeded)
            again = functools.partial(self._give_up, call, interrupt)
            timers.of_process().after(_GRACE, again)
        else:
            self._give_up(call, interrupt)

    def _give_up(self, call: PoolCall, interrupt: interrupts.Interrupt) -> None:
        if self._pool.lose(self, call):
            interrupt.deliver(exceptions.TimeLimitExceeded)


class ExternalPool:
    """A `concurrent.futures.Executor` of the user's, which is neither started nor stopped here.

    Its threads cannot be replaced: a call whose hard limit is over fails at once, and goes on to
    occupy its thread.  Where calls leave the process (`remote`), they are given None as `emit`, and
    so are not told of cancelling; they have to keep to their limits themselves.
    """

    #: Its threads may be anybody's, and what they do next is not known.
    private = in_done = has_more = False

    def __init__(self, executor: futures.Executor, *, remote: bool = False) -> None:
        self._executor = executor
        self._remote = remote
        self._lock = threading.Lock()
        # Those whose `done` is still to be called, in order; signalled when there are none.
        self._pending: dict[PoolCall, None] = {}
        self._none_pending = threading.Condition(self._lock)

    @property
    def unfinished(self) -> int:
        """How many calls wait or run."""
        return len(self._pending)

    def call_others(self) -> None:
        """Nothing: they look for themselves."""

    def start(self) -> None:
        """Nothing: the user did that."""

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        """With `wait`, return when all that was submitted is complete; what a hard limit ended may
        go on.  The executor itself stays as it is: the user may need it.
        """
        if wait:
            with self._lock:
                self._none_pending.wait_for(lambda: not self._pending)

    def submit(
        self,
        fn: Any,
        args: tuple[Any, ...],
        done: Done,
        on_event: OnEvent | None = None,
        limit: TimeLimit = UNLIMITED,
        name: str | None = None,
        *,
        cancellation: Cancellation | None = None,
        grace: float | None = None,
        always_begins: bool = False,
        lazily: bool = False,
    ) -> PoolCall:
        """Run `fn(*args, emit)` some time.

        :raises RuntimeError: the executor was shut down; whatever else it raises.
        """
        told = fn, args, done, limit, cancellation or Cancellation()
        call = PoolCall(*told, name=name, always_begins=always_begins, pool=self, on_event=on_event)
        if cancellation is not None:
            cancellation.on_cancel(call.cancel)
        self._pending[call] = None
        try:
            if self._remote:
                call.slot = self._executor.submit(fn, *(*call.args, None))
            else:
                call.slot = self._executor.submit(self._run, call)
        except BaseException:
            self._forget(call)
            raise
        call.slot.add_done_callback(functools.partial(self._ended, call))
        if call.cancellation.cancelled:  # meanwhile
            self.cancel(call)
        return call

    def withdraw(self) -> list[PoolCall]:
        """Take back every call that has not started, in order; their `done` is never called."""
        taken = []
        for call in list(self._pending):
            with self._lock:
                if call.state == QUEUED:
                    call.state = _WITHDRAWN
            if call.slot is not None and call.slot.cancel():
                taken.append(call)
                self._forget(call)
        return taken

    def _forget(self, call: PoolCall) -> None:
        with self._lock:
            self._pending.pop(call, None)
            if not self._pending:
                self._none_pending.notify_all()

    def cancel(self, call: PoolCall, grace: float | None = None) -> None:
        """See `PoolCall.cancel`; nothing is killed."""
        call.cancellation.cancel()
        if call.slot is not None and not call.always_begins:
            call.slot.cancel()

    def _ended(self, call: PoolCall, future: futures.Future[Any]) -> None:
        if not future.cancelled():
            problem = future.exception()
            self._complete(call, ft.Failure.from_exception(problem) if problem else future.result())
        elif call.state != _WITHDRAWN:
            dropped = exceptions.ExecutionFailure(f"the pool dropped {call} before it started")
            told = call.cancellation.cancelled
            self._complete(
                call, call.cancelled_early() if told else ft.Failure.from_exception(dropped)
            )

    def _complete(self, call: PoolCall, value: Any) -> None:
        with self._lock:
            if call.state == OVER:
                return
            call.state = OVER
        try:
            call.complete(value)
        finally:
            self._forget(call)

    # In the threads of the executor.

    def _run(self, call: PoolCall) -> Any:
        pid = os.getpid()
        try:
            if call.limit is UNLIMITED:
                return call.fn(*call.args, call)
            call.started()
            expire = functools.partial(self._expire, call)
            return interrupts.limited(call.limit, call.fn, (*call.args, call), expire)
        except BaseException as error:
            return ft.Failure.from_exception(error)
        finally:
            end_fork(pid)
            call.on_event = None

    def _expire(self, call: PoolCall, interrupt: interrupts.Interrupt) -> None:
        """Its hard limit is over (in the thread for timers, which has others to serve)."""
        args = (call, call.overdue())
        threading.Thread(target=self._complete, args=args, name="wbengine-overdue").start()
        interrupt.deliver(exceptions.TimeLimitExceeded)


#: All pools that were not stopped.
_LIVE: weakref.WeakSet[Pool] = weakref.WeakSet()


def stop_all() -> None:
    """End every pool, as far as that is possible now."""
    pools = list(_LIVE)
    for pool in pools:
        pool.stop(wait=False, kill=True)
    for pool in pools:
        pool.join(_EXIT_GRACE)


atexit.register(stop_all)
