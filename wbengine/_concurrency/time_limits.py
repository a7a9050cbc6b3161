"""Time limits of calls."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

__all__ = ["UNLIMITED", "TimeLimit", "read"]


class TimeLimit(NamedTuple):
    """Seconds since the start of a call. None means no limit.

    After `soft` seconds, `SoftTimeLimitExceeded` is raised in the call. After `hard` seconds the
    call is stopped.
    """

    soft: float | None = None
    hard: float | None = None


UNLIMITED: Final = TimeLimit()


def read(value: Any, what: str = "timelimit") -> TimeLimit:
    """Parse limits: None, `(soft, hard)`, or a number, which is the hard limit.

    Strings are accepted too: `'30'`, `'20,30'`, `'20,none'`, `'none'`.

    :raises TypeError: if the value has another form.
    :raises ValueError: if a limit is not positive, or the soft limit is not below the hard one.
    """
    if value is None:
        return UNLIMITED
    pair = _numbers(value) if isinstance(value, str) else value
    if not isinstance(pair, tuple | list):
        pair = (None, pair)
    if len(pair) != 2 or not all(part is None or _is_number(part) for part in pair):
        raise TypeError(f"{what} must be (soft, hard), each in seconds or None, got {value!r}")
    limit = TimeLimit(*(None if part is None else float(part) for part in pair))
    for part in limit:
        if part is not None and not 0 < part < math.inf:
            raise ValueError(f"{what} must be more than 0 seconds, got {value!r}")
    if limit.soft is not None and limit.hard is not None and limit.soft >= limit.hard:
        raise ValueError(
            f"the soft limit of {what} must be less than the hard limit, got {value!r}"
        )
    return limit


def _numbers(words: str) -> Any:
    """Parse a string. Return an invalid one unchanged."""
    parts = [part.strip().lower() for part in words.split(",")]
    try:
        numbers = [None if part == "none" else float(part) for part in parts]
    except ValueError:
        return words
    return numbers[0] if len(numbers) == 1 else numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
