"""The clock of simulated runs: waits take no time."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from wbengine._concurrency import clocks

__all__ = ["IdleClock"]


class IdleClock(clocks.ManualClock):
    """Calls `idle(timeout)` when a thread waits for an item of a queue that is empty.

    It returns whether it has caused an item. Otherwise, the clock advances by the timeout.
    """

    def __init__(self, start: float, idle: Callable[[float | None], bool]) -> None:
        super().__init__(start)
        self._idle = idle

    def queue(self) -> queue.SimpleQueue[Any]:
        return _IdleQueue(self, self._idle)


class _IdleQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    def __init__(self, clock: IdleClock, idle: Callable[[float | None], bool]) -> None:
        self._clock = clock
        self._idle = idle

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(block=False)
        except queue.Empty:
            if not block:
                raise
        if self._idle(timeout):
            return super().get(block=False)
        if timeout is not None:
            self._clock.advance(timeout)
        raise queue.Empty
