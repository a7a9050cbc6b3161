"""Durations as text, such as '5m'."""

from __future__ import annotations

import math
import re
from typing import Any, Final

__all__ = ["seconds", "seconds_of"]

_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)?", re.ASCII)
_MAX_SECONDS: Final = 100 * 365 * 86400.0


def seconds(text: str) -> float | None:
    """Return the seconds of a duration such as '90', '1.5h' or '30d'; None if it is invalid."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        return None
    value = float(match[1]) * _UNITS[match[2] or "s"]
    return value if value <= _MAX_SECONDS else None


def seconds_of(value: Any, what: str = "retry_for") -> float:
    """Return the seconds of a duration above 0: a number of seconds, or text such as '2d'.

    :raises TypeError, ValueError: if it has another form.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{what} must be seconds or text such as '2d', got {value!r:.80}")
    number = seconds(value) if isinstance(value, str) else float(value)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"{what} must be a duration above 0 such as '2d', got {value!r:.80}")
    return number
