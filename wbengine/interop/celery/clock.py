"""A logical clock, after Lamport: what was heard of is earlier than what is told afterwards."""

from __future__ import annotations

import threading
from typing import Any, Final

__all__ = ["LARGEST", "Clock"]

#: Higher values of others are not believed: counting on from there is far from the end of an
#: unsigned long long, as which some read them.
LARGEST: Final = 2**63 - 1


class Clock:
    """What a process counts its messages with: events, and answers to remote control.

    One for a process: whatever sends calls `forward`, whatever receives calls `adjust`.  Any
    thread may.
    """

    __slots__ = ("_lock", "_value")

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        """Where it stands."""
        return self._value

    def forward(self) -> int:
        """Count one more; where it stands then, which is what goes out with a message."""
        with self._lock:
            self._value += 1
            return self._value

    def adjust(self, other: Any) -> int:
        """A message came that was sent at `other`: count on from the later of the two.

        Never raises: what is no number, or none that a clock can have, counts as nothing.
        """
        with self._lock:
            if type(other) is int and self._value < other <= LARGEST:
                self._value = other
            self._value += 1
            return self._value

    def __repr__(self) -> str:
        return f"<Clock {self._value}>"
