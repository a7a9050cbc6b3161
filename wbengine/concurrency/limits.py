"""How long one call may take: its soft and its hard limit."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

__all__ = ["UNLIMITED", "TimeLimit", "read"]


class TimeLimit(NamedTuple):
    """Seconds from the start of a call; None for no limit.

    After `soft` seconds `SoftTimeLimitExceeded` is raised in it, after `hard` it is ended.
    """

    soft: float | None = None
    hard: float | None = None


UNLIMITED: Final = TimeLimit()


def read(value: Any, what: str = "timelimit") -> TimeLimit:
    """The limits in `value`: None, `(soft, hard)`, or a number, which is the hard one.

    An option may be words: `'30'`, `'20,30'`, `'20,none'`, `'none'`.

    :raises TypeError: it is none of these.
    :raises ValueError: a limit is not above 0, or the soft one is not below the hard one.
    """
    if value is None:
        return UNLIMITED
    pair = _numbers(value) if isinstance(value, str) else value
    if not isinstance(pair, tuple | list):
        pair = (None, pair)
    if len(pair) != 2 or not all(part is None or _is_number(part) for part in pair):
        raise TypeError(f"{what} must be (soft, hard), each in seconds or None, not {value!r}")
    limit = TimeLimit(*(None if part is None else float(part) for part in pair))
    for part in limit:
        if part is not None and not 0 < part < math.inf:
            raise ValueError(f"{what} must be above 0 seconds, not {value!r}")
    if limit.soft is not None and limit.hard is not None and limit.soft >= limit.hard:
        raise ValueError(f"the soft limit of {what} must be below the hard one: {value!r}")
    return limit


def _numbers(words: str) -> Any:
    """What words say; themselves if that is nothing."""
    parts = [part.strip().lower() for part in words.split(",")]
    try:
        found = [None if part == "none" else float(part) for part in parts]
    except ValueError:
        return words
    return found[0] if len(found) == 1 else found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
