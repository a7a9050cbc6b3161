"""Whether an engine hears anything at all, so that the silence of others means something."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Hearing"]

#: So many gaps are remembered.
_GAPS: Final = 64


class Hearing:
    """Echoes of what the engine told itself, and the times in which it was deaf, or slept.

    While an echo is overdue it is deaf.  Times are one clock's.
    """

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS)
        self._echo: float | None = None

    def echo(self, now: float, patience: float) -> bool:
        """It heard itself; True when that ends a time in which it did not."""
        before, self._echo = self._echo, now
        if before is None or now - before <= patience:
            return False
        self._note(before, now)
        return True

    def sleep(self, start: float, end: float) -> None:
        """Its loop did not turn in that time, and should have."""
        self._note(start, end)

    def is_deaf(self, now: float, patience: float) -> bool:
        """Whether it has not heard itself yet, or not lately."""
        return self._echo is None or now - self._echo > patience

    def missed(self, since: float, now: float, patience: float) -> float:
        """Seconds between `since` and `now` in which it could not hear."""
        seconds = sum(max(0.0, min(end, now) - max(start, since)) for start, end in self._gaps)
        if self._echo is not None and now - self._echo > patience:
            seconds += max(0.0, now - max(self._echo, since))
        return seconds

    def _note(self, start: float, end: float) -> None:
        if self._gaps:
            start = max(start, self._gaps[-1][1])  # two gaps may be one, seen twice
        if end > start:
            self._gaps.append((start, end))
