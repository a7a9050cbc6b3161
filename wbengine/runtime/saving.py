"""When a run writes what it changed: before it goes on, once a turn, or at its end.

And what it may not do before it has: an executor is told to forget an outcome after that is
written, and nothing is started once the flow is not ours any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wbengine import _clock
from wbengine.persistence.writer import RecordWriter

__all__ = [
    "BATCH", "EACH", "END", "FLUSH_INTERVAL", "LATE", "LEVELS", "OVER", "START", "TURN",
    "EarlyFlush", "Saver",
]  # fmt: skip

#: Nothing is started, told or forgotten before what led to it is written.
EACH: Final = "each"
#: What a turn changed is written at its end: what it started, or told, may be ahead of the store.
BATCH: Final = "batch"
#: Everything is written when the run ends, however it does.
END: Final = "end"
LEVELS: Final = (EACH, BATCH, END)

# The moments of a run at which it can be written: before tasks are started, in the midst of a long
# turn, at the end of a turn, and when the run is over.
START: Final = 0
LATE: Final = 1
TURN: Final = 2
OVER: Final = 3

_MOMENTS: Final = {
    EACH: frozenset({START, LATE, OVER}),
    BATCH: frozenset({LATE, TURN, OVER}),
    END: frozenset({OVER}),
}

#: Seconds after which what ended is told, and written, although its turn goes on.
FLUSH_INTERVAL: Final = 0.05

#: The same where nobody relies on it.
_FLUSH_INTERVALS: Final = {EACH: FLUSH_INTERVAL, BATCH: 1.0, END: FLUSH_INTERVAL}


class Saver:
    """Writes the records of one run, which has a backend, when `level` says so.

    `check` raises when the flow is not ours any more.
    """

    __slots__ = ("_moments", "_writer", "by_turns", "check", "flush_interval")

    def __init__(self, writer: RecordWriter, level: str, check: Callable[[], None]) -> None:
        self._writer = writer
        self._moments = _MOMENTS[level]
        self.check = check
        self.flush_interval = _FLUSH_INTERVALS[level]
        #: Whether the end of a turn is such a moment.
        self.by_turns = TURN in self._moments

    def save(self, moment: int) -> bool:
        """Write everything if this is the moment; returns whether everything is written."""
        if moment not in self._moments:
            return False
        self._writer.flush()
        return True


class EarlyFlush:
    """Lets what was told while tasks run be written soon; any thread may call it.

    `wake` wakes the loop, which writes.  In an engine whose loop runs the tasks itself, whoever
    tells something in its thread writes it, at most once in `interval` seconds.
    """

    __slots__ = ("_clock", "_due", "_immediate", "_interval", "_thread", "_wake", "_writer")

    def __init__(
        self,
        writer: RecordWriter,
        wake: Callable[[], None],
        clock: _clock.Clock,
        *,
        immediate: bool,
        interval: float = 1.0,
    ) -> None:
        self._writer = writer
        self._wake = wake
        self._clock = clock
        self._immediate = immediate
        self._interval = interval
        self._thread = threading.get_ident()
        self._due = clock.monotonic() + interval

    def __call__(self) -> None:
        self._wake()
        if self._immediate and threading.get_ident() == self._thread:
            now = self._clock.monotonic()
            if now >= self._due:
                self._due = now + self._interval
                # What runs has no part in this: if it fails, the loop finds out.
                self._writer.try_flush()

    def on_tick(self) -> None:
        """Have written what was told while no task ended."""
        if not self._immediate and self._writer.pending:
            self._wake()
