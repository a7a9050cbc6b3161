"""One attempt at an atom or an item: who ran it, and when."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Attempt", "runtime"]


class Attempt(NamedTuple):
    """Who ran an atom last, and when.

    `submitted` is when the engine handed it out (unix seconds on the engine's clock), `started` and
    `ended` when it began and ended (on the clock of the `worker`); None: it is not known, or not
    yet.
    """

    attempt: int
    action: str
    worker: str | None
    started: float | None
    ended: float | None
    submitted: float | None = None

    @property
    def runtime(self) -> float | None:
        """Seconds from the start to the end, never less than none."""
        return runtime(self.started, self.ended)


def runtime(started: float | None, ended: float | None) -> float | None:
    """Seconds between two moments of one clock, which may have been set back meanwhile."""
    return None if started is None or ended is None else max(0.0, ended - started)
