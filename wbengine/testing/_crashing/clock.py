"""The clock of simulated runs: waits take no time."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any, Final

from wbengine._concurrency import clocks
from wbengine.testing._crashing.killed import Stuck

__all__ = ["IdleClock"]

#: In the class, `queue` is a method.
_Queue = queue.SimpleQueue[Any]

#: Real seconds before a run counts as stuck, if no other run is in progress.
_GRACE_SECONDS: Final = 0.5


class IdleClock(clocks.Clock):
    """Calls `idle(timeout)` when a thread waits for an item of a queue that is empty.

    It returns whether it has caused an item. Otherwise, the clock advances by the timeout. If
    nothing ever adds an item, it raises `Stuck`.
    """

    __slots__ = ("_attached", "_idle", "_now", "_stuck")

    is_real = False

    def __init__(self, start: float, idle: Callable[[float | None], bool]) -> None:
        self._now = start
        self._idle = idle
        # Queues of runs in progress, and those of runs that seem to be stuck.
        self._attached: set[_Queue] = set()
        self._stuck: set[_Queue] = set()

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def queue(self) -> _Queue:
        return _IdleQueue(self, self._idle)

    def attach(self, events: _Queue, is_busy: Callable[[], bool]) -> None:
        self._attached.add(events)

    def detach(self, events: _Queue) -> None:
        self._attached.discard(events)

    @contextlib.contextmanager
    def stuck(self, events: _Queue) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether another run, such as a child flow, goes on.

        :param events: the queue of a run that seems to be stuck during the block.
        """
        self._stuck.add(events)
        try:
            yield lambda: not self._attached.copy() <= self._stuck
        finally:
            self._stuck.discard(events)


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
            with self._clock.stuck(self) as others_go_on:
                while True:
                    is_last = not others_go_on()
                    try:  # Another thread may add an item at this moment.
                        return super().get(timeout=_GRACE_SECONDS)
                    except queue.Empty:
                        if is_last:
                            raise error from None
        if has_item:
            return super().get(block=False)
        if timeout is not None:
            self._clock.advance(timeout)
        raise queue.Empty
