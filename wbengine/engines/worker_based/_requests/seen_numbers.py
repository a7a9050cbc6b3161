"""Numbers of received messages."""

from __future__ import annotations

import bisect


class SeenNumbers:
    """A set of numbers. Those that follow each other need no memory of their own."""

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        # The first number of each range, and the number after its last one, alternately.
        self._bounds: list[int] = []

    def add(self, number: int) -> bool:
        """Add a number; return False if it was contained."""
        bounds = self._bounds
        at = bisect.bisect_right(bounds, number)
        if at % 2:
            return False
        begin, end = at, at
        new = [number, number + 1]
        if at and bounds[at - 1] == number:  # It follows a range.
            begin -= 1
            del new[0]
        if at < len(bounds) and bounds[at] == number + 1:  # A range follows it.
            end += 1
            del new[-1]
        bounds[begin:end] = new
        return True
