"""Interruptible timeouts and a stop watch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from wbengine._concurrency import clocks

EventFactory = Callable[[], threading.Event]


class Timeout:
    """A timeout in seconds whose `wait` can be interrupted. Thread-safe."""

    __slots__ = ("_event", "_value")

    def __init__(self, value: float, event_factory: EventFactory = threading.Event) -> None:
        """Create a timeout.

        :raises ValueError: if `value` is negative.
        """
        if not value >= 0:
            raise ValueError(f"A timeout must be 0 or more seconds, got {value!r}")
        self._value = value
        self._event = event_factory()

    @property
    def value(self) -> float:
        """The maximum seconds that `wait` blocks."""
        return self._value

    def interrupt(self) -> None:
        """End all current and future waits, until `reset`."""
        self._event.set()

    def is_stopped(self) -> bool:
        """Return True if the timeout was interrupted."""
        return self._event.is_set()

    def wait(self) -> None:
        """Block this thread until the timeout expires or is interrupted."""
        self._event.wait(self._value)

    def reset(self) -> None:
        """Clear the interruption."""
        self._event.clear()


def convert_to_timeout(
    value: float | str | Timeout | None = None,
    default_value: float | str | Timeout | None = None,
    event_factory: EventFactory = threading.Event,
) -> Timeout:
    """Return a `Timeout` for `value`, or for `default_value` if `value` is None.

    A `Timeout` is returned unchanged.

    :raises ValueError: if the value is not a number of seconds.
    """
    timeout = default_value if value is None else value
    if isinstance(timeout, Timeout):
        return timeout
    if isinstance(timeout, int | float | str):
        return Timeout(float(timeout), event_factory)
    raise ValueError(f"A timeout must be a number of seconds or a Timeout, got {timeout!r}")


class StopWatch:
    """Measures the time between `start` and `stop`, optionally against a `duration` in seconds.

    Also a context manager, which starts and stops the watch. Not thread-safe.
    """

    __slots__ = ("_clock", "_duration", "_started", "_stopped")

    def __init__(
        self, duration: float | None = None, *, clock: clocks.Clock = clocks.SYSTEM
    ) -> None:
        """Create a stopwatch.

        :raises ValueError: if `duration` is negative.
        """
        if duration is not None and not duration >= 0:
            raise ValueError(f"A duration must be 0 or more seconds, got {duration!r}")
        self._duration = duration
        self._clock = clock
        self._started: float | None = None
        self._stopped: float | None = None

    def start(self) -> Self:
        """Start measuring. No effect on a running watch."""
        if not self.has_started():
            self._started, self._stopped = self._clock.monotonic(), None
        return self

    def restart(self) -> Self:
        """Start again from zero."""
        self._started, self._stopped = self._clock.monotonic(), None
        return self

    def stop(self) -> Self:
        """Stop measuring. No effect on a stopped watch.

        :raises RuntimeError: if the watch was never started.
        """
        self._since()
        if self._stopped is None:
            self._stopped = self._clock.monotonic()
        return self

    def has_started(self) -> bool:
        return self._started is not None and self._stopped is None

    def has_stopped(self) -> bool:
        return self._stopped is not None

    def elapsed(self) -> float:
        """Return the seconds from the start until now, or until the stop.

        :raises RuntimeError: if the watch was never started.
        """
        began = self._since()
        until = self._clock.monotonic() if self._stopped is None else self._stopped
        return max(0.0, until - began)

    def expired(self) -> bool:
        """Return True if the duration has passed; False without a duration.

        :raises RuntimeError: if the watch has a duration and was never started.
        """
        return self.elapsed() > self._duration if self._duration is not None else False

    def leftover(self, return_none: bool = False) -> float | None:
        """Return the seconds until the duration has passed, at least 0.0.

        :param return_none: return None if there is no duration.
        :raises RuntimeError: if there is no duration (without `return_none`), or the watch is not
            running.
        """
        if self._duration is None:
            if return_none:
                return None
            raise RuntimeError("A stop watch without a duration has no remaining time")
        if not self.has_started():
            raise RuntimeError("A stop watch that is not running has no remaining time")
        return max(0.0, self._duration - self.elapsed())

    def _since(self) -> float:
        if self._started is None:
            raise RuntimeError("The stop watch was never started")
        return self._started

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
