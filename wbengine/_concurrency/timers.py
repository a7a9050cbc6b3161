"""Timers: one thread waits for all deadlines."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from wbengine._concurrency import conditions, per_process, threads

LOG = logging.getLogger(__name__)

#: Number of cancelled timers that may stay in the heap, in addition to half of its size.
_MAX_CANCELLED_TIMERS: Final = 64
#: Maximum duration of one wait. Python's own maximum depends on the system.
_MAX_WAIT_SECONDS: Final = 3600.0


class Timer:
    """Opaque handle of a timer: a call of `act` at a deadline."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], object]) -> None:
        #: None if the timer has fired or was cancelled.
        self.act: Callable[[], object] | None = act


class TimerThread:
    """Timers, and the thread that serves them. The first timer starts the thread.

    The thread makes the calls. They must return quickly, because they delay other timers. Their
    exceptions are logged. All methods are thread-safe and take about 2 µs.
    """

    def __init__(self, name: str = "wbengine-timers") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._changed = conditions.Condition(self._lock)
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        with self._lock:
            return len(self._heap) - self._cancelled

    def after(self, seconds: float, act: Callable[[], object]) -> Timer:
        """Call `act()` once, after a number of seconds."""
        timer = Timer(act)
        entry = (time.monotonic() + seconds, next(self._numbers), timer)
        with self._lock:
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                # A daemon, so that a distant timer does not keep the interpreter alive.
                thread = threads.Thread(target=self._serve, name=self._name, daemon=True)
                try:
                    thread.start()
                finally:  # Also after an interrupt.
                    self._thread = None if thread.ident is None else thread
            elif self._heap[0] is entry:
                self._changed.notify_all()
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Cancel a timer. Return False if it has fired, is firing, or was cancelled before."""
        with self._lock:
            if timer.act is None:
                return False
            timer.act = None
            self._cancelled += 1
            if self._cancelled > _MAX_CANCELLED_TIMERS + len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if entry[2].act is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0
        return True

    def _serve(self) -> None:
        while True:
            act = self._next()
            try:
                act()
            except BaseException:
                LOG.exception("a timer callback failed")
            del act

    def _next(self) -> Callable[[], object]:
        with self._lock:
            while True:
                wait = self._heap[0][0] - time.monotonic() if self._heap else _MAX_WAIT_SECONDS
                if wait > 0:
                    self._changed.wait(min(wait, _MAX_WAIT_SECONDS))
                    continue
                timer = heapq.heappop(self._heap)[2]
                act, timer.act = timer.act, None
                if act is not None:
                    return act
                self._cancelled -= 1


of_process: Final = per_process.PerProcess(TimerThread)
