"""Conditions and events that remain consistent if an exception interrupts a thread.

Python raises `KeyboardInterrupt` at function calls and at backward jumps. `threading.Condition`,
`Event` and `Semaphore` are Python code: an interrupt in `__enter__` can leave their lock locked
forever, and an interrupt in `wait` can leave it unlocked inside the caller's `with` statement.
`with` on a `threading.Lock` or `RLock` is atomic, because both are written in C.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["Condition", "Event"]

_T = TypeVar("_T")


class _Waitable:
    """An object for which threads wait. Each thread waits for its own lock.

    An interrupt leaves at most an unused lock.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: Final[set[Any]] = set()

    def _add_waiter(self) -> Any:
        """Return a locked lock that the next `notify_all` unlocks."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.add(waiter)
        return waiter

    def notify_all(self) -> None:
        waiters = self._waiters
        for waiter in waiters.copy() if waiters else ():
            try:
                waiter.release()
            except RuntimeError:  # Another thread has unlocked it.
                pass
            waiters.discard(waiter)


class Condition(_Waitable):
    """A condition variable of a lock. Use `with lock`, not `with condition`.

    Any number of conditions may share a `threading.Lock` or `RLock`. The caller of `notify_all`
    holds the lock.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: Any) -> None:
        super().__init__()
        self._lock: Final = lock

    def wait_for(self, predicate: Callable[[], _T], timeout: float | None = None) -> _T:
        """Wait until `predicate()` is true or the timeout expires. Return its latest value.

        The predicate is called with the lock. The caller must not hold the lock.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiter = None
        try:
            while True:
                with self._lock:
                    result = predicate()
                    if result:
                        return result
                    waiter = self._add_waiter()
                seconds = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and seconds <= 0:
                    return result
                waiter.acquire(True, min(seconds, threading.TIMEOUT_MAX))
                self._waiters.discard(waiter)
        finally:
            self._waiters.discard(waiter)

    def wait(self, timeout: float | None = None) -> bool:
        """Unlock the lock, wait for `notify_all`, and lock it again. Return False after `timeout`.

        The caller must hold the lock once. Use this only in threads that no exception interrupts:
        an interrupt can leave the lock unlocked.
        """
        seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        waiter = self._add_waiter()
        self._lock.release()
        try:
            return waiter.acquire(True, seconds)  # type: ignore[no-any-return]
        finally:
            self._waiters.discard(waiter)
            self._lock.acquire()


class Event(_Waitable):
    """A `threading.Event` that is also safe in a signal handler, because it uses no lock."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waiters:
            self.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set or the timeout expires. Return whether it is set."""
        if self._is_set:
            return True
        waiter = self._add_waiter()
        try:
            if not self._is_set:  # It may have been set before the waiter was added.
                seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
                waiter.acquire(True, seconds)
        finally:
            self._waiters.discard(waiter)
        return self._is_set
