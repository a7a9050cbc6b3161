"""Whether, and how long to wait before, the next attempt."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Backoff", "Chance", "Errors"]

#: Exceptions that are worth another attempt, or not: a class, its full name, or several of these.
Errors = type[BaseException] | str | Iterable[type[BaseException] | str]


class Chance(Protocol):
    """Where randomness comes from: the module `random`, or a `random.Random`."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: `delay`, then `delay * multiplier`, `delay * multiplier ** 2`, ... seconds.

    To each up to `jitter` seconds are added at random, so that what failed together does not come
    back together.  No wait is longer than `max_delay`.

    >>> waits = Backoff(delay=1, multiplier=3, max_delay=20.0)
    >>> [waits.seconds(attempt) for attempt in (1, 2, 3, 4)]
    [1.0, 3.0, 9.0, 20.0]

    :raises TypeError: when one of them is not a number.
    :raises ValueError: when one of them is negative, infinite or not a number at all.
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
                raise TypeError(f"The {name} of a Backoff must be a number, not {value!r}")
            if not 0 <= value < math.inf:
                raise ValueError(f"The {name} of a Backoff must not be negative, as {value!r}")
            if value > sys.float_info.max:
                raise ValueError(
                    f"The {name} of a Backoff must be at most {sys.float_info.max:g}, which a far"
                    " bigger number was given for"
                )

    @classmethod
    def of(cls, wanted: Backoff | float | None) -> Backoff | None:
        """Read an option: a number of seconds is the same wait each time, None no wait.

        :raises TypeError: when it is something else.
        :raises ValueError: as the class itself.
        """
        if wanted is None or isinstance(wanted, cls):
            return wanted
        if isinstance(wanted, bool) or not isinstance(wanted, int | float):
            raise TypeError(f"A backoff must be a Backoff or a number of seconds, not {wanted!r}")
        return cls(wanted, multiplier=1.0)

    def seconds(self, attempt: int, chance: Chance = random) -> float:
        """How long to wait after that many attempts (from 1) failed."""
        # Here, because most flows never wait, and it takes longer to import than all the rest.
        import tenacity

        state: Any = tenacity.RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        state.attempt_number = attempt
        # Its own jitter could not be told where to take the randomness from.
        growth = tenacity.wait_exponential_jitter(exp_base=self.multiplier, jitter=0)(state)
        wait = self.delay * growth + (chance.uniform(0.0, self.jitter) if self.jitter else 0.0)
        return wait if self.max_delay is None else min(wait, self.max_delay)
