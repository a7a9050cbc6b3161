"""Exceptions of the simulation, and exceptions that it injects."""

from __future__ import annotations

__all__ = ["Killed", "LostWorker", "Stuck", "Unexpected"]


class Killed(BaseException):
    """Ends a simulated process. What the process does afterwards has no effect."""


class LostWorker(BaseException):
    """Ends a simulated worker in the middle of a step.

    :ivar repeats: whether the step runs again in any case.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        super().__init__()
        self.repeats = repeats


class Stuck(BaseException):
    """The flow waits for something that never happens."""


class Unexpected(Exception):
    """An exception that no task expects, injected by `crash_everywhere`."""
