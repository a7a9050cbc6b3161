"""The threads of a pool, from their beginning to their end."""

from __future__ import annotations

import threading
import time

__all__ = ["Serving"]


class Serving:
    """The threads that serve, each until it ends or is lost; `lock` is the pool's."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._threads: set[threading.Thread] = set()
        self._lost: set[threading.Thread] = set()

    def begin(self, thread: threading.Thread) -> None:
        """It serves from now on; under the lock, as all but `join`."""
        self._threads.add(thread)

    def end(self, thread: threading.Thread) -> None:
        """It is about to end."""
        self._threads.discard(thread)
        self._lost.discard(thread)
        self._changed.notify_all()

    def lose(self, thread: threading.Thread) -> None:
        """Nobody waits for it any more."""
        if thread in self._threads:
            self._lost.add(thread)
        self._threads.discard(thread)
        self._changed.notify_all()

    def join(self, timeout: float | None) -> None:
        """Wait until nobody serves any more but the thread that asks."""
        deadline = None if timeout is None else time.monotonic() + timeout
        here = {threading.current_thread()}
        seen: set[threading.Thread] = set()
        # Not through the condition: an interruption (Ctrl-C) within its `__enter__`, which is
        # Python, would leave it locked for ever.
        with self._lock:
            while self._threads - here:
                seen |= self._threads - here
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._changed.wait(left)
            seen -= self._lost
        for thread in seen:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
