"""Pools of threads and of processes that run plain functions, one call per slot at a time.

Both pools share one contract:

- `submit(fn, args, done, on_event)` runs `fn(*args, emit)` in a free slot, calls in the order
  submitted.  `emit(event_type, details)` reports events while the call runs.
- `done(value)` is called exactly once for each call that `withdraw` did not hand back, in the
  thread of its slot, with what `fn` returned or with the `Failure` that stands for it.
- `on_event(event_type, details)` is called in the same thread (processes) or in the emitting thread
  (threads), in the order emitted, before `done`.
- Both should return quickly: the slot waits for them.  What they raise is logged.
- Slots start when they are first needed, or all at once by `start()`.
- A pool is stopped by `stop()`, or by leaving its `with` block.  One that is still there when the
  interpreter ends is killed.
"""

from __future__ import annotations

import abc
import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wbengine import _pool_child, _pool_process, exceptions
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger(__name__)

#: Seconds that calls which run when the interpreter ends have to finish.
_GRACE: Final = 2.0

Done = Callable[[Any], None]
OnEvent = Callable[[str, dict[str, Any]], None]


class Ticket:
    """One submitted call."""

    __slots__ = ("args", "done", "fn", "on_event")

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], done: Done, on_event: OnEvent | None
    ) -> None:
        self.fn = fn
        self.args = args
        self.done = done
        self.on_event = on_event

    def tell(self, event_type: str, details: dict[str, Any]) -> None:
        on_event = self.on_event
        if on_event is None:
            return
        try:
            on_event(event_type, details)
        except Exception:
            LOG.exception("the receiver of event %r of %s failed", event_type, self)

    def __str__(self) -> str:
        return getattr(self.fn, "__qualname__", None) or repr(self.fn)


class _Slot(abc.ABC):
    """A place where one call at a time runs; used by its own thread only, but for `kill`."""

    def open(self) -> None:  # noqa: B027  (a default, not a stub)
        """Acquire in advance what `run` needs."""

    @abc.abstractmethod
    def run(self, ticket: Ticket) -> Any:
        """Run the call and return its value or `Failure`; never raises."""

    def kill(self) -> None:  # noqa: B027
        """End what runs, from any thread."""

    def close(self) -> None:  # noqa: B027
        """Give back what the slot holds."""


class _Pool(abc.ABC):
    """The queue, the threads of the slots, and their ends.  All methods may be called anywhere."""

    def __init__(self, size: int, *, name: str = "wbengine") -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size of a pool must be a whole number of at least 1, not {size!r}")
        self._size = size
        self._name = name
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[Ticket] = deque()
        self._slots: list[_Slot] = []
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._running = 0
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
        with self._lock:
            return max(0, self._size - self._running - len(self._queue))

    def start(self) -> None:
        """Start all slots now; returns at once, calls may be submitted before they are ready."""
        with self._lock:
            if self._stopping:
                raise RuntimeError(f"pool {self._name!r} was stopped")
            self._eager = True
            while len(self._threads) < self._size:
                self._add_slot()

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        done: Done,
        on_event: OnEvent | None = None,
    ) -> Ticket:
        """Run `fn(*args, emit)` some time.

        :raises RuntimeError: the pool was stopped.
        """
        ticket = Ticket(fn, tuple(args), done, on_event)
        with self._lock:
            if self._stopping:
                raise RuntimeError(f"pool {self._name!r} was stopped")
            self._queue.append(ticket)
            if self._waiting < len(self._queue) and len(self._threads) < self._size:
                self._add_slot()
            self._changed.notify()
        return ticket

    def withdraw(self) -> list[Ticket]:
        """Take back every call that has not started, in order; their `done` is never called."""
        with self._lock:
            tickets = list(self._queue)
            self._queue.clear()
        return tickets

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        """Accept nothing more, finish what was submitted, and end the slots.  Idempotent.

        Idle slots end at once.  With `kill`, running processes are killed (threads cannot be: their
        calls finish) and calls that have not started fail; a later `stop(kill=True)` hastens an
        earlier `stop()`.  With `wait`, returns when every `done` has returned and all slots
        have ended; called from a `done`, it does not wait for that slot.
        """
        with self._lock:
            self._stopping = True
            self._killed = self._killed or kill
            slots = list(self._slots)
            threads = list(self._threads)
            self._changed.notify_all()
        if kill:
            for slot in slots:
                slot.kill()
        if wait:
            self._join(threads, None)
        _LIVE.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abc.abstractmethod
    def _make_slot(self, name: str) -> _Slot: ...

    def _add_slot(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        slot = self._make_slot(name)
        # Daemon threads: an idle pool that nobody stopped must not keep the interpreter alive.
        thread = threading.Thread(target=self._loop, args=(slot,), name=name, daemon=True)
        thread.start()  # first: what an interruption leaves must not look like a thread that serves
        self._slots.append(slot)
        self._threads.append(thread)

    def _join(self, threads: list[threading.Thread], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _loop(self, slot: _Slot) -> None:
        try:
            if self._eager:
                slot.open()
            while (ticket := self._take()) is not None:
                if self._killed:
                    value = _lost(f"pool {self._name!r} was stopped before {ticket} started")
                else:
                    value = slot.run(ticket)
                with self._lock:
                    self._running -= 1
                try:
                    ticket.done(value)
                except BaseException:
                    LOG.exception("the receiver of the result of %s failed", ticket)
                del ticket, value
        finally:
            slot.close()

    def _take(self) -> Ticket | None:
        with self._lock:
            while not self._queue:
                if self._stopping:
                    return None
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            self._running += 1
            return self._queue.popleft()


class ThreadPool(_Pool):
    """`size` threads of this process."""

    def _make_slot(self, name: str) -> _Slot:
        return _Thread()


class _Thread(_Slot):
    def run(self, ticket: Ticket) -> Any:
        pid = os.getpid()
        try:
            return ticket.fn(*ticket.args, ticket.tell)
        except BaseException as error:
            return ft.Failure.from_exception(error)
        finally:
            if os.getpid() != pid:  # a fork that the call made, and that came out of it as well
                os._exit(0)
            ticket.on_event = None  # threads that outlive the call have nothing to tell any more


class ProcessPool(_Pool):
    """`size` child processes, each served by its own thread over its own pipe.

    - `fn` must be importable by name; it, its arguments, its events and its result are pickled.
      What cannot be pickled is a `Failure` of `NotEncodable` that names the type and its path;
      the child lives on.
    - What `fn` raises (`SystemExit` and `KeyboardInterrupt` included) is a `Failure` made in the
      child.
    - A child that dies gives a `Failure` of `WorkerLost` that names pid and exit code or signal; it
      alone is replaced, when the next call needs it.  One that dies between two calls costs none.
    - `initializer(*initargs)` runs first in each child; what it raises fails the call that needed
      the child.
    - Children are never forks of this process (forkserver, else spawn): the module `__main__` is
      imported under another name, as with `multiprocessing`, so scripts need their main guard.
      They get the environment as it is when they start, do not react to SIGINT (the parent
      decides), and end when the parent does, even in the middle of a call.

    A call costs about 0.1 ms above what it does; a child about 10 ms, the first one more.
    """

    def __init__(
        self,
        size: int,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        name: str = "wbengine",
    ) -> None:
        super().__init__(size, name=name)
        self._initializer = initializer
        self._initargs = tuple(initargs)

    @property
    def pids(self) -> list[int]:
        """The processes that are alive now, in the order of the slots."""
        with self._lock:
            slots = list(self._slots)
        return [slot.pid for slot in slots if isinstance(slot, _Process) and slot.pid]

    def _make_slot(self, name: str) -> _Slot:
        return _Process(name, self._initializer, self._initargs)


class _Process(_Slot):
    """The parent's side of one child after another."""

    def __init__(
        self, name: str, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
    ) -> None:
        self._name = name
        self._initializer = initializer
        self._initargs = initargs
        self._child: _pool_process.Child | None = None
        self._lock = threading.Lock()
        self._killed = False

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def open(self) -> None:
        problem = self._ensure()
        if problem is not None:
            LOG.warning("process %s did not start: %s", self._name, problem.pformat())

    def run(self, ticket: Ticket) -> Any:
        try:
            data = _pool_child.encode_call(ticket.fn, ticket.args)
        except exceptions.NotEncodable as error:
            return ft.Failure.from_exception(error)
        try:
            for _ in range(2):
                problem = self._ensure()
                if problem is not None:
                    return problem
                child = self._child
                assert child is not None
                if child.send(data):
                    del data
                    return self._settle(child, child.result(ticket.tell), ticket)
                # It died between two calls: this one never reached it, another child may run it.
                self.close()
            return _lost(f"two processes of {self._name} died before {ticket} reached them")
        except Exception as error:
            self.close()
            return ft.Failure.from_exception(error)

    def _settle(self, child: _pool_process.Child, value: Any, ticket: Ticket) -> Any:
        if value is not _pool_process.GONE:
            return value
        self.close()
        return _lost(f"process {child.pid} ({self._name}) {child.fate()} while it ran {ticket}")

    def _ensure(self) -> ft.Failure | None:
        """Have a child that is ready; the Failure says why there is none."""
        if self._child is not None:
            if self._child.alive():
                return None
            self.close()
        try:
            child = _pool_process.Child(self._name, self._initializer, self._initargs)
        except Exception as error:
            return ft.Failure.from_exception(error)
        with self._lock:
            self._child = child
            killed = self._killed
        if killed:
            child.kill()
        problem = child.result(None)
        if problem is None:
            return None
        self.close()
        if problem is _pool_process.GONE:
            return _lost(f"process {child.pid} ({self._name}) {child.fate()} before it was ready")
        assert isinstance(problem, ft.Failure)
        return problem

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()


def _lost(message: str) -> ft.Failure:
    return ft.Failure.from_exception(exceptions.WorkerLost(message))


_LIVE: weakref.WeakSet[_Pool] = weakref.WeakSet()


def _at_exit() -> None:
    pools = list(_LIVE)
    for pool in pools:
        pool.stop(wait=False, kill=True)
    for pool in pools:
        pool._join(pool._threads, _GRACE)


# Registered after the handler of `multiprocessing`, so it runs before that one, which would wait
# for children that wait for us.
atexit.register(_at_exit)
