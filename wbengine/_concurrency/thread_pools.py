"""Pools of threads, and the common base class of pools: a queue of calls, and slots."""

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
from typing import Any, Final, Self

from wbengine import exceptions
from wbengine._concurrency import conditions, forks, interrupts, threads, timers
from wbengine._concurrency.call import Call, Cancellation, Done
from wbengine._concurrency.time_limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

__all__ = ["ExternalPool", "Pool", "PoolCall", "SoloPool", "ThreadPool"]

LOG = logging.getLogger("wbengine.pools")

#: States of a call, in order. OVER: a thread calls `done`, or has called it.
QUEUED: Final = 0
RUNNING: Final = 1
OVER: Final = 2
# In an external pool: `cancel` of its future was requested. It ends without `done` if that works.
_WITHDRAWN: Final = 3

OnEvent = Callable[[str, dict[str, Any]], None]

#: Time in which a thread must return after a hard limit ended the coroutine it waited for.
_GRACE_SECONDS: Final = 1.0
#: Time limit for running calls at the exit of the interpreter.
_EXIT_GRACE_SECONDS: Final = 2.0
#: Interval at which `join` checks whether the other thread was lost.
_JOIN_SECONDS: Final = 0.1


@dataclass(slots=True, eq=False, repr=False)
class PoolCall(Call):
    """A submitted call. It is also the `emit` argument of a call in a thread: it reports events."""

    pool: Pool | ExternalPool = field(kw_only=True)
    on_event: OnEvent | None = field(kw_only=True)
    on_begin: Callable[[], None] | None = field(default=None, kw_only=True)
    state: int = field(default=QUEUED, init=False)
    #: The slot in which the call runs. Only its pool uses this.
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
            LOG.exception("the callback for event %r of %s failed", event_type, self)

    def cancel(self, grace: float | None = None) -> None:
        """Cancel the call. Thread-safe, idempotent.

        If the call has not started, it ends immediately with a `Failure` of `Cancelled`, unless it
        `always_begins`. A running call is notified (`cancellation`, `Task.cancelled`). If it then
        runs in a child process for more than `grace` seconds (None: no limit), the process is
        killed, and the call ends with the same failure. Otherwise its own result is used.
        """
        self.pool.cancel(self, grace)

    def tell_begun(self) -> None:
        """Call `on_begin`, because the call begins in another process."""
        if self.on_begin is not None:
            self.on_begin()

    def started(self) -> None:
        """Set the deadline of the hard limit."""
        if self.limit.hard is not None:
            self.cancellation.deadline = time.time() + self.limit.hard


def worker_lost(message: str) -> ft.Failure:
    return ft.Failure.from_exception(exceptions.WorkerLost(message))


class Slot:
    """A place that runs one call at a time: by default, a thread.

    Only its thread uses it, except for `kill` and `cancel`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether `recycle` is needed before the next call.
        self.exhausted = False
        self.thread: threading.Thread | None = None
        #: The thread waits for this lock. Releasing it wakes the thread.
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self.owner_pid = forks.current_pid

    def open(self) -> None:
        """Prepare the resources that `run` needs."""

    def run(self, call: PoolCall) -> Any:
        """Return the value or `Failure` of the call. Raise nothing."""
        try:
            value = call.fn(*call.args, call)
        except BaseException as error:
            value = ft.Failure.from_exception(error)
        finally:
            call.on_event = None  # Threads that outlive the call must not report events.
        forks.end_fork(self.owner_pid, value)
        return value

    def run_limited(self, call: PoolCall) -> Any:
        return self.run(call)

    def recycle(self) -> None:
        """Replace the resources of an `exhausted` slot."""

    def cancel(self, call: PoolCall, grace: float | None) -> None:
        """Forward the cancellation of a running call."""

    def kill(self) -> None:
        """End the running call. Thread-safe."""

    def log_stacks(self) -> None:
        """Let the process that runs the call log its stacks, if it is not this process."""

    def close(self) -> None:
        """Release the resources of the slot."""


class Pool(abc.ABC):
    """A queue of calls, and the slots that run them. Thread-safe."""

    #: Whether the threads belong to the pool, so that no other code runs in them.
    private = True

    def __init__(self, size: int, *, name: str = "wbengine") -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size of a pool must be a whole number of at least 1, got {size!r}")
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[PoolCall] = deque()
        # Number of waiting and running calls, without cancelled calls that are still in the queue.
        self._open = 0
        self._slots: list[Slot] = []
        # Threads that serve slots, except lost ones.
        self._threads: set[threading.Thread] = set()
        # Waiting slots. The last one is woken first, so that one slot runs many short calls.
        self._idle: list[Slot] = []
        self._waking = False
        # Idents of threads that run a `done`.
        self._completing: set[int] = set()
        self._lost = 0
        self._eager = False
        self._stopping = False
        self._killed = False
        # Whether a parent of this process has started the slots: a fork has no threads.
        self._is_inherited = False
        _LIVE.add(self)

    @property
    def size(self) -> int:
        return self._size

    @property
    def idle(self) -> int:
        """Number of further calls that would start immediately.

        A slot is idle again just before the `done` of its call runs.
        """
        return max(0, self._size - self._open)

    @property
    def unfinished(self) -> int:
        return self._open

    @property
    def lost(self) -> int:
        """Number of threads that were replaced because their calls exceeded the hard limit."""
        return self._lost

    def _check_process(self) -> None:
        if self._is_inherited:
            raise RuntimeError(
                f"pool {self._name!r} was started before this process was forked: create a pool"
                " after the fork"
            )

    def start(self) -> None:
        """Start all slots. This does not wait until they are ready."""
        self._check_process()
        with self._lock:
            if self._stopping:
                raise RuntimeError(f"pool {self._name!r} is stopped")
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
        on_begin: Callable[[], None] | None = None,
    ) -> PoolCall:
        """Run `fn(*args, emit)` in a slot.

        :param name: name of the task, for messages.
        :param cancellation: token that cancels the call, with this `grace`.
        :param always_begins: see `Call`.
        :param lazily: promise that the submitting `done` returns soon, so that its slot runs the
            call and no other slot is woken.
        :param on_begin: called when a child process has received the call. Pools of threads ignore
            it.
        :raises RuntimeError: if the pool was stopped, or has slots of a process whose fork this is.
        """
        self._check_process()
        call_args = fn, args, done, limit, cancellation or Cancellation()
        call = PoolCall(
            *call_args, name=name, always_begins=always_begins, pool=self, on_event=on_event
        )
        call.on_begin = on_begin
        if cancellation is not None:  # If it is cancelled already, the call ends here.
            cancellation.on_cancel(
                call.cancel if grace is None else functools.partial(call.cancel, grace)
            )
        with self._lock:
            self._open += 1
            if call.state == OVER:  # It was cancelled, and `done` was called.
                return call
            if self._stopping:
                self._open -= 1
                call.state = OVER
                raise RuntimeError(f"pool {self._name!r} is stopped")
            self._queue.append(call)
            if not self._waking and not (lazily and self.in_done):
                self._wake()
        return call

    @property
    def in_done(self) -> bool:
        """Whether this thread runs a `done`."""
        return threading.get_ident() in self._completing

    @property
    def has_more(self) -> bool:
        """Whether the slot of the current `done` will run another call."""
        return bool(self._queue) and self.in_done

    def call_others(self) -> None:
        """Wake other slots, because the `done` that submitted lazily takes long."""
        with self._lock:
            self._wake()

    def withdraw(self) -> list[PoolCall]:
        """Return all calls that have not started, in order. Their `done` is never called."""
        with self._lock:
            calls = [call for call in self._queue if call.state == QUEUED]
            for call in calls:
                call.state = OVER
            self._queue.clear()
            self._open -= len(calls)
        return calls

    def cancel(self, call: PoolCall, grace: float | None = None) -> None:
        with self._lock:
            state, slot = call.state, call.slot
            if early := state == QUEUED and not call.always_begins:
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
        """Reject further calls, finish the submitted ones, and end the slots. Idempotent.

        With `kill`, running processes are killed (calls in threads finish) and calls that have not
        started fail. With `wait`, this returns after all `done` have returned and all slots have
        ended, except the slot of the calling `done` and lost threads.
        """
        if self._is_inherited:
            return
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

    def _disown(self) -> None:
        """In a fork, leave the slots that the parent has started alone, and reject calls."""
        if self._slots:
            self._is_inherited = True
            _LIVE.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join(self, timeout: float | None) -> None:
        """Wait until all other threads that serve slots have ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._threads = {thread for thread in self._threads if thread.is_alive()}
                others = self._threads - {threading.current_thread()}
            remaining_seconds = _JOIN_SECONDS if deadline is None else deadline - time.monotonic()
            if not others or remaining_seconds <= 0:
                return
            others.pop().join(min(remaining_seconds, _JOIN_SECONDS))

    @abc.abstractmethod
    def _make_slot(self, name: str) -> Slot: ...

    def _add_slot(self) -> None:
        slot = self._make_slot(f"{self._name}-{len(self._slots)}")
        # First, so that an interrupt leaves no slot without a thread in the list.
        self._start_thread(slot)
        self._slots.append(slot)

    def _start_thread(self, slot: Slot, overdue: PoolCall | None = None) -> None:
        # A daemon, so that an idle pool that is not stopped does not keep the interpreter alive.
        thread = threads.Thread(
            target=self._serve, args=(slot, overdue), name=slot.name, daemon=True
        )
        slot.thread = thread
        self._threads.add(thread)
        thread.start()

    def _serve(self, slot: Slot, overdue: PoolCall | None = None) -> None:
        """Run a thread. `overdue` is the call in which the previous thread of the slot was lost."""
        slot.owner_pid = forks.current_pid
        has_slot = True
        try:
            if overdue is not None:
                overdue.complete(overdue.overdue())
            elif self._eager:
                slot.open()
            overdue = None
            while has_slot and (call := self._take_call(slot)) is not None:
                has_slot = self._run_call(slot, call)
                del call
        finally:
            if has_slot:
                slot.close()
                with self._lock:
                    self._leave_idle(slot)  # If an exception ended the wait in `_take_call`.
                self.call_others()

    def _run_call(self, slot: Slot, call: PoolCall) -> bool:
        """Run a call. Return False if this thread was given up in the meantime."""
        if self._killed:
            value: Any = worker_lost(f"pool {self._name!r} was stopped before {call} started")
        elif call.limit is UNLIMITED:
            value = slot.run(call)
        else:
            try:
                call.started()
                value = slot.run_limited(call)
            # For example, a limit is not a number. The slot can continue.
            except Exception as error:
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

    def _take_call(self, slot: Slot) -> PoolCall | None:
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
        """Wake or create one slot, unless a woken slot has not taken a call yet.

        A slot that takes a call wakes the next slot. Waking all slots costs more than short calls.
        """
        if self._waking or not self._queue:
            return
        if self._idle:
            self._wake_last()
            self._waking = True
        elif len(self._slots) < self._size:
            self._add_slot()

    def _wake_last(self) -> None:
        # Interrupts at any point are safe: a slot may be woken twice, but none is forgotten.
        wakeup = self._idle[-1].wakeup
        if wakeup.locked():
            wakeup.release()
        self._idle.pop()

    def _leave_idle(self, slot: Slot) -> None:
        self._waking = False
        if slot in self._idle:
            self._idle.remove(slot)


class ThreadPool(Pool):
    """`size` threads of this process.

    After the soft limit of a call, `SoftTimeLimitExceeded` is raised in its thread between two
    Python instructions, but not while the thread waits in C code. Like Ctrl-C, it can arrive at any
    instruction. After the hard limit, the call fails immediately with `TimeLimitExceeded`. Its
    thread is lost (`lost`, and a log line) and replaced, and `TimeLimitExceeded` is raised in it.

    If the call waits for a coroutine (`EventLoop.run`), the limits apply to the coroutine, and no
    thread is lost.
    """

    def _make_slot(self, name: str) -> Slot:
        return _Thread(name, self)

    def lose(self, slot: Slot, call: PoolCall) -> bool:
        """Give up the thread that runs a call. Return False if the call has ended."""
        with self._lock:
            if call.state != RUNNING:
                return False
            call.state = OVER
            call.slot = None
            self._open -= 1
            self._lost += 1
        LOG.warning(
            "thread %s of pool %r is lost: it still runs %s after the hard limit of %g s",
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
            except RuntimeError:  # The system cannot create more threads.
                self._slots.remove(slot)
        call.complete(call.overdue())
        return True


class SoloPool(ThreadPool):
    """A pool with one slot: calls run in the thread that calls `serve`.

    Limits are those of `ThreadPool`. In the main thread, a signal raises the exception of the soft
    limit, which interrupts most waits in C code. If the thread is lost, another one continues.
    """

    private = False

    def __init__(self, *, name: str = "wbengine") -> None:
        super().__init__(1, name=name)
        self._slots.append(self._make_slot(f"{name}-solo"))

    def serve(self) -> None:
        """Run the submitted calls in this thread, until `stop` and the end of the last call.

        :raises RuntimeError: if another thread has served the pool.
        """
        slot, me = self._slots[0], threading.current_thread()
        with self._lock:
            if slot.thread is not None:
                raise RuntimeError(f"pool {self._name!r} is already served by {slot.thread.name}")
            slot.thread = me
            self._threads.add(me)
        interrupts.handle_signal()
        try:
            self._serve(slot)
        finally:
            with self._lock:
                self._threads.discard(me)
        self.join(None)  # If this thread was lost, another one serves.


class _Thread(Slot):
    def __init__(self, name: str, pool: ThreadPool) -> None:
        super().__init__(name)
        self._pool = pool

    def run_limited(self, call: PoolCall) -> Any:
        return interrupts.limited(
            call.limit, self.run, (call,), functools.partial(self._expire, call)
        )

    def _expire(self, call: PoolCall, interrupt: interrupts.Interrupt) -> None:
        if interrupt.redirected:
            # The awaited coroutine ends, and then the thread returns unless it waits again.
            interrupt.deliver(exceptions.TimeLimitExceeded)
            give_up_later = functools.partial(self._give_up, call, interrupt)
            timers.of_process().after(_GRACE_SECONDS, give_up_later)
        else:
            self._give_up(call, interrupt)

    def _give_up(self, call: PoolCall, interrupt: interrupts.Interrupt) -> None:
        if self._pool.lose(self, call):
            interrupt.deliver(exceptions.TimeLimitExceeded)


class ExternalPool:
    """A `concurrent.futures.Executor` of the user, which this class neither starts nor stops.

    Its threads cannot be replaced: after its hard limit a call fails immediately, but occupies its
    thread until it returns. Calls of a `remote` executor receive None as `emit`. They receive no
    cancellations and must enforce their limits themselves.

    The futures of some executors, such as Dask, never report that a call is `running`. It is then
    unknown which calls have started, so none is withdrawn or cancelled: all run to their end.
    """

    #: The threads of the executor may run other code, and their next calls are unknown.
    private = in_done = has_more = False

    def __init__(self, executor: futures.Executor, *, remote: bool = False) -> None:
        _check_executor(executor)
        self._executor = executor
        self._remote = remote
        # False for unknown executors, until one of their futures is running.
        self._reports_starts = not remote or isinstance(executor, futures.ProcessPoolExecutor)
        self._lock = threading.Lock()
        # Calls whose `done` was not called, in order. The condition is notified when it is empty.
        self._pending: dict[PoolCall, None] = {}
        self._none_pending = conditions.Condition(self._lock)

    @property
    def unfinished(self) -> int:
        return len(self._pending)

    def call_others(self) -> None:
        """Do nothing. The executor wakes its own threads."""

    def start(self) -> None:
        """Do nothing. The user starts the executor."""

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        """If `wait` is set, wait for the submitted calls. The executor is not shut down."""
        if wait:
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
        """Run `fn(*args, emit)`.

        :raises RuntimeError: if the executor was shut down. Other exceptions of the executor
            propagate.
        """
        call_args = fn, args, done, limit, cancellation or Cancellation()
        call = PoolCall(
            *call_args, name=name, always_begins=always_begins, pool=self, on_event=on_event
        )
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
        if call.cancellation.cancelled:  # It was cancelled before `slot` was set.
            self.cancel(call)
        return call

    def withdraw(self) -> list[PoolCall]:
        withdrawn_calls: list[PoolCall] = []
        pending_calls = list(self._pending)
        if not any(map(self._has_reported_starts, pending_calls)):
            return withdrawn_calls
        for call in pending_calls:
            with self._lock:
                if call.slot is None or call.state != QUEUED:
                    continue  # It is being submitted, or another thread completes it.
                call.state = _WITHDRAWN
            if call.slot.cancel():
                withdrawn_calls.append(call)
                self._forget(call)
        return withdrawn_calls

    def _forget(self, call: PoolCall) -> None:
        with self._lock:
            self._pending.pop(call, None)
            if not self._pending:
                self._none_pending.notify_all()

    def _has_reported_starts(self, call: PoolCall) -> bool:
        """Return whether calls that are not `running` have not started, also judging by `call`."""
        if not self._reports_starts and call.slot is not None and call.slot.running():
            self._reports_starts = True
        return self._reports_starts

    def cancel(self, call: PoolCall, grace: float | None = None) -> None:
        """Cancel as `PoolCall.cancel` does, without killing a process."""
        call.cancellation.cancel()
        if call.slot is not None and not call.always_begins and self._has_reported_starts(call):
            call.slot.cancel()

    def _ended(self, call: PoolCall, future: futures.Future[Any]) -> None:
        if not future.cancelled():
            problem = future.exception()
            self._complete(call, ft.Failure.from_exception(problem) if problem else future.result())
        elif self._is_not_withdrawn(call):
            dropped = exceptions.ExecutionFailure(f"the pool dropped {call} before it started")
            if not self._reports_starts:
                dropped = exceptions.WorkerLost(f"the pool dropped {call}, which may have started")
            was_cancelled = call.cancellation.cancelled and self._reports_starts
            self._complete(
                call,
                call.cancelled_early() if was_cancelled else ft.Failure.from_exception(dropped),
            )

    def _is_not_withdrawn(self, call: PoolCall) -> bool:
        """Return whether a call whose future was cancelled has to be completed."""
        with self._lock:
            if call.state == QUEUED:
                call.state = RUNNING  # `withdraw` does not return it.
            return call.state == RUNNING

    def _complete(self, call: PoolCall, value: Any) -> None:
        with self._lock:
            if call.state == OVER:
                return
            call.state = OVER
        try:
            call.complete(value)
        finally:
            self._forget(call)

    # The threads of the executor call the methods below.

    def _run(self, call: PoolCall) -> Any:
        pid = forks.current_pid
        try:
            if call.limit is UNLIMITED:
                value = call.fn(*call.args, call)
            else:
                call.started()
                expire = functools.partial(self._expire, call)
                value = interrupts.limited(call.limit, call.fn, (*call.args, call), expire)
        except BaseException as error:
            value = ft.Failure.from_exception(error)
        finally:
            call.on_event = None
        forks.end_fork(pid, value)
        return value

    def _expire(self, call: PoolCall, interrupt: interrupts.Interrupt) -> None:
        """End a call after its hard limit.

        A new thread completes it, because the timer thread must not block.
        """
        args = (call, call.overdue())
        threads.Thread(target=self._complete, args=args, name="wbengine-overdue").start()
        interrupt.deliver(exceptions.TimeLimitExceeded)


#: All pools that are not stopped.
_LIVE: weakref.WeakSet[Pool] = weakref.WeakSet()
#: The processes that first used an executor of a user.
_first_users: Final[weakref.WeakKeyDictionary[futures.Executor, int]] = weakref.WeakKeyDictionary()


def _disown_all() -> None:
    """Leave started pools to the parent: their threads and processes belong to it."""
    for pool in list(_LIVE):
        pool._disown()


os.register_at_fork(after_in_child=_disown_all)


def _check_executor(executor: futures.Executor) -> None:
    """Check that no parent of this process has used a pool of the standard library.

    :raises RuntimeError: if one has; the pool would never run a call of this process.
    """
    if isinstance(executor, futures.ThreadPoolExecutor | futures.ProcessPoolExecutor):
        pid = _first_users.setdefault(executor, forks.current_pid)
        if pid != forks.current_pid:
            raise RuntimeError(
                f"{type(executor).__name__} was used in process {pid} before the fork of this"
                " process: create another one after the fork"
            )


def live_slots() -> list[Slot]:
    return [slot for pool in list(_LIVE) for slot in list(pool._slots)]


def stop_all() -> None:
    """Stop every pool, killing its processes. Wait a short time for running calls."""
    pools = list(_LIVE)
    for pool in pools:
        pool.stop(wait=False, kill=True)
    for pool in pools:
        pool.join(_EXIT_GRACE_SECONDS)


atexit.register(stop_all)
