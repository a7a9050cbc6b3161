"""How long a worker waits for something to do before it ends."""

from __future__ import annotations

from typing import Final

__all__ = ["GAP", "Patience"]

#: Seconds between two looks that mean that nothing could have come meanwhile: the broker was away,
#: or this process was stopped.
GAP: Final = 3.0


class Patience:
    """Whether nothing was to be done for `most` seconds; None: it may be so for ever.

    All times are those of one monotonic clock.  Not thread-safe.
    """

    def __init__(self, most: float | None, now: float) -> None:
        self.most = most
        #: When something was to be done; whoever knows of something sets it.
        self.since = now
        self._looked = now

    def is_over(self, now: float, busy: bool) -> bool:
        """A look, at least once a second; `busy`: something is being done, or may not be."""
        if busy or now - self._looked > GAP:
            self.since = now
        self._looked = now
        return self.most is not None and now - self.since >= self.most

    def idle(self, now: float) -> float:
        """Seconds since something was to be done."""
        return now - self.since
