"""Times of Celery's messages: ISO 8601, UTC where they name no zone."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Final

__all__ = ["after", "parse", "text", "utc"]

#: No time on the wire is longer.
_LONGEST: Final = 64

_FORM: Final = re.compile(
    r"(?P<year>\d{4})"
    r"(?:-?W(?P<week>\d\d)-?(?P<weekday>[1-7])|-(?P<month>\d\d)-(?P<day>\d\d)|(?P<short>\d{4}))"
    r"(?:[T ](?P<hour>\d\d)(?::?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<part>\d+))?)?)?"
    r"(?P<zone>Z|[+-]\d\d(?::?\d\d(?::?\d\d(?:\.\d+)?)?)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def parse(words: str) -> datetime:
    """The time that ISO 8601 words tell, with a zone if they name one.

    Dates may be `2009-11-17`, `20091117` or `2009-W47-2`, times have hours and as much more as is
    there, zones are `Z` or an offset.

    :raises ValueError: they tell none.
    """
    found = _FORM.fullmatch(words) if len(words) <= _LONGEST else None
    if found is None:
        raise ValueError(f"not a time in ISO 8601: {words[:_LONGEST]!r}")
    year = int(found["year"])
    if found["week"]:
        day = date.fromisocalendar(year, int(found["week"]), int(found["weekday"]))
    else:
        short = found["short"] or found["month"] + found["day"]
        day = date(year, int(short[:2]), int(short[2:]))
    hour, minute, second = (int(found[key] or 0) for key in ("hour", "minute", "second"))
    micro = int((found["part"] or "0")[:6].ljust(6, "0"))
    midnight = hour == 24 and not (minute or second or micro)
    time = datetime(day.year, day.month, day.day, 0 if midnight else hour, minute, second, micro)
    try:
        time += timedelta(days=midnight)
    except OverflowError:
        raise ValueError(f"{words!r} is after all times") from None
    return time.replace(tzinfo=_zone(found["zone"]))


def utc(time: datetime, zone: tzinfo = timezone.utc) -> datetime:
    """`time` in UTC; without a zone of its own it is a time in `zone`.

    :raises ValueError: there is no such time in UTC.
    """
    try:
        if time.utcoffset() is None:
            time = time.replace(tzinfo=zone)
        return time.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{time} is no time in UTC") from None


def text(time: datetime | None) -> str | None:
    """`time` as Celery writes it; None is None."""
    return None if time is None else time.isoformat()


def after(now: float, seconds: float) -> datetime:
    """The time so many seconds after `now`, which is in seconds since 1970.

    :raises ValueError: there is no such time.
    """
    try:
        return datetime.fromtimestamp(now + seconds, timezone.utc)
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"there is no time {seconds!r} seconds from now") from None


def _zone(words: str | None) -> timezone | None:
    if not words:
        return None
    if words in "Zz":
        return timezone.utc
    plain = words[1:].replace(":", "")
    hours, minutes, seconds = (int(plain[at : at + 2] or 0) for at in (0, 2, 4))
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if words[0] == "-" else offset)
