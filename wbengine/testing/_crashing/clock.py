"""The clock of simulated runs: waits take no time."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, Final

from wbengine._concurrency import clocks
from wbengine.testing._crashing.killed import Stuck

__all__ = ["IdleClock"]

#: Real seconds before a run counts as stuck.
_GRACE_SECONDS: Final = 0.5


class IdleClock(clocks.Clock):
    """Calls `idle(timeout)` when a thread waits for an item of a queue that is empty.

    It returns whether it has caused an item. Otherwise, the clock advances by the timeout. If
    nothing ever adds an item, it raises `Stuck`.
    """

    __slots__ = ("_idle", "_now")

    is_real = False

    def __init__(self, start: float, idle: Callable[[float | None], bool]) -> None:
        self._now = start
        self._idle = idle

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

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
        try:
            has_item = self._idle(timeout)
        except Stuck as error:
            try:  # Another thread may add an item at this moment.
                return super().get(timeout=_GRACE_SECONDS)
            except queue.Empty:
                raise error from None
        if has_item:
            return super().get(block=False)
        if timeout is not None:
            self._clock.advance(timeout)
        raise queue.Empty
