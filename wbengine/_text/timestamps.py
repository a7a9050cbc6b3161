"""Points in time as text, such as '2026-11-21T08:00' or '7d' (before now)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from wbengine._text import durations

__all__ = ["ISO", "SCHEMA", "text_of", "unix_seconds"]

#: The last second of the year 9999.
_MAX_SECONDS: Final = 253_402_300_799.0

_DAYS_OF_ALL_YEARS: Final = (
    "[1-9][0-9]{3}-(?:02-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01]))"
)
_LEAP_DAYS: Final = (
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29"
)
#: Pattern of a date, or a date and time with an optional time zone, in ISO 8601.
ISO: Final = (
    f"(?:{_DAYS_OF_ALL_YEARS}|{_LEAP_DAYS})"
    "(?:T(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.][0-9]{1,6})?)?"
    "(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])?)?"
)


def text_of(moment: float) -> str:
    """Return Unix time as ISO 8601 in UTC, without fractions of a second.

    >>> text_of(0.5)
    '1970-01-01T00:00:00Z'
    """
    return f"{datetime.fromtimestamp(min(moment, _MAX_SECONDS), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _number(digits: int) -> str:
    """Return the pattern of a number. Durations above a century are invalid."""
    return f"[0-9]{{1,{digits}}}(?:[.][0-9]{{1,3}})?"


#: JSON schema of a text for `unix_seconds`.
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": "a time such as 2026-11-21T08:00 (UTC) or a duration such as 2h (before now)",
    "pattern": f"^(?:{ISO}|{_number(6)}(?:s|min|m)?|{_number(5)}h|{_number(4)}d|{_number(3)}w)$",
}


def unix_seconds(text: str) -> float:
    """Return the Unix time of a date and time, by default in UTC, or of a duration before now.

    :raises ValueError: if the text is neither.
    """
    if (ago := durations.seconds(text)) is not None:
        return time.time() - ago
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"must be {SCHEMA['description']}, got {text!r:.80}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
