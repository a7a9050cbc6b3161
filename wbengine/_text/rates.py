"""Rates such as '100/m'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["DESCRIPTION", "PATTERN", "interval"]

_SECONDS_PER_UNIT: Final[Mapping[str, float]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE: Final = re.compile(r"([1-9][0-9]{0,8})/([smhd])")
#: Pattern of a JSON schema, and what it matches.
PATTERN: Final = f"^{_RATE.pattern}$"
DESCRIPTION: Final = "a number from 1 per s, m, h or d, such as '100/m'"


def interval(rate: str) -> float | None:
    """Return the seconds between two events of a rate, or None if it is invalid.

    >>> interval("100/m")
    0.6
    """
    match = _RATE.fullmatch(rate)
    return None if match is None else _SECONDS_PER_UNIT[match[2]] / int(match[1])
