"""What is to be done at its time: one thread that waits for the next of many moments."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from wbengine.concurrency import per_process

LOG = logging.getLogger(__name__)

#: Cancelled timers that are kept, besides as many as there are others.
_CANCELLED_KEPT: Final = 64
#: No wait is longer; Python's own bound differs between systems.
_LONGEST_WAIT: Final = 3600.0


class Timer:
    """One thing to be done; known to its thread."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], object]) -> None:
        #: None: done, or cancelled.
        self.act: Callable[[], object] | None = act


class TimerThread:
    """Timers, and the one thread that serves all of them, made for the first.

    What is to be done is called in that thread, and has to return quickly: the others wait.  What
    it raises is logged.  All methods may be called from any thread; each takes about 2 µs.
    """

    def __init__(self, name: str = "wbengine-timers") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """How many timers have neither been served nor cancelled."""
        with self._lock:
            return len(self._heap) - self._cancelled

    def after(self, seconds: float, act: Callable[[], object]) -> Timer:
        """Call `act()` once, so many seconds from now."""
        timer = Timer(act)
        entry = (time.monotonic() + seconds, next(self._numbers), timer)
        with self._lock:
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                # A daemon: what may be due tomorrow must not keep the interpreter alive.
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            elif self._heap[0] is entry:
                self._changed.notify()
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Do not call it; False: it was called, or is just being called, or cancelled before."""
        with self._lock:
            if timer.act is None:
                return False
            timer.act = None
            self._cancelled += 1
            if self._cancelled > _CANCELLED_KEPT + len(self._heap) // 2:
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
                LOG.exception("something that was due failed")
            del act

    def _next(self) -> Callable[[], object]:
        with self._lock:
            while True:
                wait = self._heap[0][0] - time.monotonic() if self._heap else _LONGEST_WAIT
                if wait > 0:
                    self._changed.wait(min(wait, _LONGEST_WAIT))
                    continue
                timer = heapq.heappop(self._heap)[2]
                act, timer.act = timer.act, None
                if act is not None:
                    return act
                self._cancelled -= 1


#: The one thread for timers of this process.
of_process: Final = per_process.PerProcess(TimerThread)
