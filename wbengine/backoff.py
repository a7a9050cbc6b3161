"""Waits between attempts."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Backoff", "Chance", "Errors"]

#: Exceptions to retry or not to retry: a class, its full name, or several of these.
Errors = type[BaseException] | str | Iterable[type[BaseException] | str]


class Chance(Protocol):
    """A source of random numbers: the module `random`, or a `random.Random`."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Increasing waits: `delay`, then `delay * multiplier`, `delay * multiplier ** 2`, ... seconds.

    Each wait is extended by up to `jitter` random seconds, so that attempts that failed together do
    not start together. The maximum wait is `max_delay`.

    >>> waits = Backoff(delay=1, multiplier=3, max_delay=20.0)
    >>> [waits.seconds(attempt) for attempt in (1, 2, 3, 4)]
    [1.0, 3.0, 9.0, 20.0]

    :raises TypeError: if a parameter is not a number.
    :raises ValueError: if a parameter is negative, infinite or NaN.
    """

    delay: float = 1.0
    multiplier: float = 2.0
    max_delay: float | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name in ("delay", "multiplier", "max_delay", "jitter"):
            value = getattr(self, name)
            if value is None and name == "max_delay":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"Backoff {name} must be a number, got {value!r}")
            if not 0 <= value < math.inf:
                raise ValueError(f"Backoff {name} must be 0 or more, got {value!r}")
            if value > sys.float_info.max:
                raise ValueError(
                    f"Backoff {name} must be at most {sys.float_info.max:g}, got a larger number"
                )

    @classmethod
    def of(cls, wanted: Backoff | float | None) -> Backoff | None:
        """Parse an option. A number is a constant wait in seconds, None is no wait.

        :raises TypeError: if it has another type.
        :raises ValueError: if it is negative, infinite or NaN.
        """
        if wanted is None or isinstance(wanted, cls):
            return wanted
        if isinstance(wanted, bool) or not isinstance(wanted, int | float):
            raise TypeError(f"backoff must be a Backoff or a number of seconds, got {wanted!r}")
        return cls(wanted, multiplier=1.0)

    def shortest(self, attempt: int) -> float:
        """Return the seconds to wait after this number of failed attempts, without jitter."""
        return dataclasses.replace(self, jitter=0.0).seconds(attempt)

    def seconds(self, attempt: int, chance: Chance = random) -> float:
        """Return the seconds to wait after this number of failed attempts (at least 1)."""
        # Imported here, because the import is slow and most flows never wait.
        import tenacity

        state: Any = tenacity.RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        state.attempt_number = attempt
        # tenacity's own jitter does not accept a source of randomness.
        growth = tenacity.wait_exponential_jitter(exp_base=self.multiplier, jitter=0)(state)
        wait = self.delay * growth + (chance.uniform(0.0, self.jitter) if self.jitter else 0.0)
        return wait if self.max_delay is None else min(wait, self.max_delay)
