"""Retry controllers that wait before they run their flows again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

from wbengine._concurrency import clocks
from wbengine._runtime import deadlines
from wbengine._runtime.gates import base

__all__ = ["RetryWaitGate"]


class RetryWaitGate(base.Gate):
    """Delays retry controllers until their delay has passed.

    :param delay: `(node, now, wait_ended)`: returns the seconds to wait; `now` is in Unix seconds.
    """

    def __init__(
        self,
        timers: deadlines.Timers,
        clock: clocks.Clock,
        delay: Callable[[int, float, bool], float],
    ) -> None:
        self._timers: Final = timers
        self._clock: Final = clock
        self._delay: Final = delay
        self._released: set[int] = set()

    def admit_retries(self, nodes: Sequence[int]) -> Sequence[int]:
        return [node for node in nodes if not self._delay_if_early(node)]

    def _delay_if_early(self, node: int) -> bool:
        seconds = self._delay(node, self._clock.time(), node in self._released)
        self._released.discard(node)
        if seconds:
            self._timers.set((self, node), self._clock.monotonic() + seconds)
        return bool(seconds)

    def release(self, due: Iterable[Hashable]) -> base.Work:
        retries: list[Any] = list(due)
        self._released = set(retries)
        return base.Work(retries=retries)
