"""Timeouts that can be interrupted, and a watch that measures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from wbengine import _clock

if TYPE_CHECKING:
    from typing_extensions import Self

EventFactory = Callable[[], threading.Event]


class Timeout:
    """So many seconds to wait, unless somebody interrupts the waiting.  Thread-safe."""

    __slots__ = ("_event", "_value")

    def __init__(self, value: float, event_factory: EventFactory = threading.Event) -> None:
        """
        :raises ValueError: `value` is negative.
        """
        if not value >= 0:
            raise ValueError(f"A timeout must be zero or more seconds, not {value!r}")
        self._value = value
        self._event = event_factory()

    @property
    def value(self) -> float:
        """The seconds that `wait` waits at most."""
        return self._value

    def interrupt(self) -> None:
        """End all waiting, now and until `reset`."""
        self._event.set()

    def is_stopped(self) -> bool:
        """Was it interrupted?"""
        return self._event.is_set()

    def wait(self) -> None:
        """Block this thread until the seconds are over, or it is interrupted."""
        self._event.wait(self._value)

    def reset(self) -> None:
        """Forget the interruption."""
        self._event.clear()


def convert_to_timeout(
    value: float | str | Timeout | None = None,
    default_value: float | str | Timeout | None = None,
    event_factory: EventFactory = threading.Event,
) -> Timeout:
    """A `Timeout` of `value` (of `default_value` if that is None); one that is one already stays.

    :raises ValueError: it is no number of seconds.
    """
    found = default_value if value is None else value
    if isinstance(found, Timeout):
        return found
    if isinstance(found, int | float | str):
        return Timeout(float(found), event_factory)
    raise ValueError(f"A timeout must be a number of seconds or a Timeout, not {found!r}")


class StopWatch:
    """Measures the time between `start` and `stop`, and knows when its `duration` is over.

    A context manager that starts and stops.  For one thread at a time.
    """

    __slots__ = ("_clock", "_duration", "_started", "_stopped")

    def __init__(
        self, duration: float | None = None, *, clock: _clock.Clock = _clock.SYSTEM
    ) -> None:
        """
        :raises ValueError: `duration` is negative.
        """
        if duration is not None and not duration >= 0:
            raise ValueError(f"A duration must be zero or more seconds, not {duration!r}")
        self._duration = duration
        self._clock = clock
        self._started: float | None = None
        self._stopped: float | None = None

    def start(self) -> Self:
        """Begin to measure; on a running watch this does nothing."""
        if not self.has_started():
            self._started, self._stopped = self._clock.monotonic(), None
        return self

    def restart(self) -> Self:
        """Begin again from zero."""
        self._started, self._stopped = self._clock.monotonic(), None
        return self

    def stop(self) -> Self:
        """Stop measuring; on a stopped watch this does nothing.

        :raises RuntimeError: it was never started.
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
        """Seconds from the start until now, or until it was stopped.

        :raises RuntimeError: it was never started.
        """
        began = self._since()
        until = self._clock.monotonic() if self._stopped is None else self._stopped
        return max(0.0, until - began)

    def expired(self) -> bool:
        """Is the duration over?  Never without one.

        :raises RuntimeError: it was never started.
        """
        return self.elapsed() > self._duration if self._duration is not None else False

    def leftover(self, return_none: bool = False) -> float | None:
        """Seconds until the duration is over, at least 0.0.

        Without a duration: None if `return_none`.

        :raises RuntimeError: it has no duration, or does not run.
        """
        if self._duration is None:
            if return_none:
                return None
            raise RuntimeError("A stop watch without a duration has nothing left over")
        if not self.has_started():
            raise RuntimeError("A stop watch that does not run has nothing left over")
        return max(0.0, self._duration - self.elapsed())

    def _since(self) -> float:
        if self._started is None:
            raise RuntimeError("The stop watch was never started")
        return self._started

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
