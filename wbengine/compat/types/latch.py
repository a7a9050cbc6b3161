"""Waiting until something happened a number of times."""

from __future__ import annotations

import threading


class Latch:
    """Opens when it was counted down `count` times, and stays open.  Thread-safe."""

    __slots__ = ("_condition", "_count")

    def __init__(self, count: int) -> None:
        """
        :raises ValueError: `count` is not greater than zero.
        """
        count = int(count)
        if count <= 0:
            raise ValueError(f"The count of a latch must be greater than zero, not {count}")
        self._count = count
        self._condition = threading.Condition()

    @property
    def needed(self) -> int:
        """How many times it must still be counted down."""
        return max(0, self._count)

    def countdown(self) -> None:
        """Count one arrival; more than needed do no harm."""
        with self._condition:
            self._count -= 1
            if self._count <= 0:
                self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (None: for ever) until it is open; is it?"""
        with self._condition:
            return self._condition.wait_for(lambda: self._count <= 0, timeout)
