"""Decide when a run writes its changes: before it continues, once in an iteration, or at its end.

An executor forgets an outcome only after the outcome is written. Nothing is started after the lease
of the flow is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._concurrency.crash_points import crashpoint
from wbengine.persistence._writer import RecordWriter

__all__ = [
    "BATCH",
    "EACH",
    "END",
    "ITERATION",
    "LATE",
    "LEVELS",
    "OVER",
    "START",
    "EarlyFlush",
    "Saver",
]  # fmt: skip

#: Changes are written before the calls, events and deletions that follow from them.
EACH: Final = "each"
#: Changes are written at the end of an iteration. Calls and events may be ahead of the store.
BATCH: Final = "batch"
#: Changes are written when the run ends, also after an error. A crash loses them.
END: Final = "end"
LEVELS: Final = (EACH, BATCH, END)

# Moments at which a run may write: before tasks start, during a long iteration, after each
# iteration, at the end of the run.
START: Final = 0
LATE: Final = 1
ITERATION: Final = 2
OVER: Final = 3

_MOMENTS: Final = {
    EACH: frozenset({START, LATE, OVER}),
    BATCH: frozenset({LATE, ITERATION, OVER}),
    END: frozenset({OVER}),
}

#: Seconds after which the results of a long iteration are written (EACH, BATCH) and reported.
_FLUSH_SECONDS: Final = {EACH: 0.05, BATCH: 1.0, END: 0.05}


class Saver:
    """Writes the records of a run at the moments that `level` defines.

    After a write, the executor may forget the `ended` calls.

    :param writer: None: there is no store, so everything counts as written.
    :param check: raises an exception if the lease of the flow is lost. None: there is no store, so
        no other process can take the flow over.
    """

    __slots__ = (
        "_clock", "_executor", "_flush_seconds", "_moments", "_saved_at", "_writer", "check",
        "ended", "retires", "saves_iterations",
    )  # fmt: skip

    def __init__(
        self,
        executor: calls.TaskExecutor,
        clock: clocks.Clock,
        writer: RecordWriter | None = None,
        level: str = EACH,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._writer = writer
        self._moments = _MOMENTS[level]
        self._flush_seconds = _FLUSH_SECONDS[level]
        self._saved_at = 0.0
        self.check = check
        #: Whether the changes of each iteration are written at its end.
        self.saves_iterations = ITERATION in self._moments
        #: Whether the executor has to be notified of `ended` calls.
        self.retires = type(executor).retire is not calls.TaskExecutor.retire
        #: Calls whose outcomes the executor still remembers. The run adds them if `retires`.
        self.ended: list[calls.Invocation] = []

    @property
    def has_store(self) -> bool:
        return self._writer is not None

    def save(self, moment: int) -> None:
        """Write everything if this is the right moment, and retire calls after a write."""
        if self._writer is not None:
            if moment not in self._moments:
                return
            self._writer.flush()
        if self.ended:
            ended, self.ended = self.ended, []
            crashpoint("engine.before-retire")
            self._executor.retire(ended)
            crashpoint("engine.after-retire")

    def start_interval(self) -> None:
        """Start the time after which a long iteration `is_late`."""
        self._saved_at = self._clock.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether outcomes are to be written although the iteration continues."""
        return self._clock.monotonic() - self._saved_at >= self._flush_seconds


class EarlyFlush:
    """Writes events of running tasks soon. Thread-safe.

    `wake` wakes the loop, which writes. In an engine whose loop runs the tasks itself, a task that
    reports something writes it in the same thread, at most once in `interval` seconds or `at_once`.
    """

    __slots__ = ("_clock", "_due", "_immediate", "_interval", "_thread", "_wake", "_writer")

    def __init__(
        self,
        writer: RecordWriter,
        wake: Callable[[], None],
        clock: clocks.Clock,
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

    def __call__(self, at_once: bool = False) -> None:
        self._wake()
        if self._immediate and threading.get_ident() == self._thread:
            now = self._clock.monotonic()
            if at_once or now >= self._due:
                self._due = now + self._interval
                # An error must not affect the running task; the loop meets it later.
                self._writer.try_flush()

    def on_tick(self) -> None:
        """Wake the loop if events are pending although no task ended."""
        if not self._immediate and self._writer.has_pending:
            self._wake()
