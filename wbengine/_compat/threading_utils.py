"""Threads and bundles of threads."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

ThreadFactory = Callable[[], threading.Thread]
Listener = Callable[[threading.Thread], Any]

get_ident = threading.get_ident


def is_alive(thread: threading.Thread | None) -> bool:
    """Return True if the thread is alive. False for None and other false values."""
    return bool(thread) and thread.is_alive()  # type: ignore[union-attr]


def get_optimal_thread_count(default: int = 2) -> int:
    """Return the number of processors plus one, or `default` if the number is unknown."""
    try:
        return multiprocessing.cpu_count() + 1
    except NotImplementedError:
        return default


def daemon_thread(target: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
    """Return a daemon thread, not started, that calls `target`."""
    return threading.Thread(target=target, args=args, kwargs=kwargs, daemon=True)


def no_op(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


class _Bound(NamedTuple):
    thread_factory: ThreadFactory
    before_start: Listener
    after_start: Listener
    before_join: Listener
    after_join: Listener


class ThreadBundle:
    """Threads that start together in the order of `bind`, and stop together in the opposite order.

    Thread-safe. Callbacks receive the thread, and must not call `bind`, `start` or `stop` of the
    bundle.
    """

    def __init__(self) -> None:
        self._bound: list[_Bound] = []
        self._running: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()

    def bind(
        self,
        thread_factory: ThreadFactory,
        before_start: Listener | None = None,
        after_start: Listener | None = None,
        before_join: Listener | None = None,
        after_join: Listener | None = None,
    ) -> None:
        """Add a thread. `thread_factory()` creates it at each start.

        `before_join` should request the end of the thread.

        :raises ValueError: if an argument is not callable.
        """
        bound = _Bound(
            thread_factory,
            before_start or no_op,
            after_start or no_op,
            before_join or no_op,
            after_join or no_op,
        )
        for name, value in zip(bound._fields, bound, strict=True):
            if not callable(value):
                raise ValueError(f"{name} must be callable, got {value!r}")
        with self._lock:
            self._bound.append(bound)

    def start(self) -> int:
        """Create and start the threads that are not running. Return their number.

        Exceptions of callbacks propagate. Afterwards, `stop` still stops all running threads.
        """
        count = 0
        with self._lock:
            for place, bound in enumerate(self._bound):
                if place in self._running:
                    continue
                thread = bound.thread_factory()
                bound.before_start(thread)
                thread.start()
                self._running[place] = thread
                count += 1
                bound.after_start(thread)
        return count

    def stop(self) -> int:
        """Wait until the started threads end. Return their number."""
        count = 0
        with self._lock:
            for place in sorted(self._running, reverse=True):
                thread, bound = self._running[place], self._bound[place]
                bound.before_join(thread)
                thread.join()
                del self._running[place]
                count += 1
                bound.after_join(thread)
        return count

    def __len__(self) -> int:
        return len(self._bound)

    def __bool__(self) -> bool:
        return True
