"""Rates such as '100/m'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["DESCRIPTION", "PATTERN", "check_units", "interval", "parts"]

_SECONDS_PER_UNIT: Final[Mapping[str, float]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE: Final = re.compile(r"([1-9][0-9]{0,8})/([smhd])")
#: Pattern of a JSON schema, and what it matches.
PATTERN: Final = f"^{_RATE.pattern}$"
DESCRIPTION: Final = "a number from 1 per s, m, h or d, such as '100/m'"
_MAX_UNITS: Final = 1e300


def parts(rate: str) -> tuple[int, float] | None:
    """Return the number of events and the seconds of a rate, or None if it is invalid.

    >>> parts("100/m")
    (100, 60)
    """
    match = _RATE.fullmatch(rate)
    return None if match is None else (int(match[1]), _SECONDS_PER_UNIT[match[2]])


def interval(rate: str) -> float | None:
    """Return the seconds between two events of a rate, or None if it is invalid.

    >>> interval("100/m")
    0.6
    """
    found = parts(rate)
    return None if found is None else found[1] / found[0]


def check_units(what: str, units: Any) -> float:
    """Check a number of units of a rate, and return it as a float.

    :raises TypeError, ValueError: if it is not a finite number of at least 0.
    """
    if isinstance(units, bool) or not isinstance(units, int | float):
        raise TypeError(f"{what} must be a number, got {type(units).__name__}")
    if not 0 <= units <= _MAX_UNITS:
        raise ValueError(f"{what} must be a finite number of at least 0, got {units!r:.80}")
    return float(units)
