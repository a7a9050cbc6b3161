"""The crash points that a process reaches."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wbengine._concurrency import crash_points


class Points:
    """Calls `stopped(point)` once, the next time that the process reaches the requested point.

    The call happens in the thread that reaches it, which waits until the call returns.
    """

    def __init__(self, stopped: Callable[[str], None]) -> None:
        self._stopped = stopped
        self._lock = threading.Lock()
        self._wanted = ""
        self._passed: set[str] = set()

    def install(self) -> None:
        crash_points.install(self._come)

    def remove(self) -> None:
        crash_points.install(None)

    def stop_at(self, point: str) -> None:
        with self._lock:
            self._wanted = point

    def passed(self) -> list[str]:
        """Return the points that were reached since the last call."""
        with self._lock:
            passed, self._passed = self._passed, set()
        return sorted(passed)

    def _come(self, point: str) -> None:
        with self._lock:
            self._passed.add(point)
            if point != self._wanted:
                return
            self._wanted = ""
        self._stopped(point)
