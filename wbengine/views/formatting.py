"""Times, durations, numbers and owners, for people and for JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any, Final, Protocol

from wbengine.persistence import owners

__all__ = ["Tried", "as_dict", "clock", "count", "iso", "nth", "owner", "seconds", "size"]

#: Fields of views that hold unix seconds.
_MOMENTS: Final = frozenset(
    {"at", "began", "born", "created", "ended", "heard", "started", "submitted", "updated"}
)
_PLAIN: Final = frozenset({type(None), bool, float, int, str})
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def iso(moment: float | None) -> str | None:
    """Unix seconds as ISO 8601 in UTC, to the millisecond; None stays None.

    >>> iso(0)
    '1970-01-01T00:00:00.000Z'
    """
    if moment is None:
        return None
    try:
        second, micros = divmod(round(moment * 1e6), 1_000_000)
        return f"{_second(second)}.{micros // 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return None  # whoever wrote it had no clock


@functools.lru_cache(1024)
def _second(moment: int) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat().removesuffix("+00:00")


def as_dict(view: Any, *also: str, without: Collection[str] = ()) -> dict[str, Any]:
    """A view for JSON: its fields and these of its properties, moments in ISO 8601."""
    fields = getattr(view, "_fields", None) or [each.name for each in dataclasses.fields(view)]
    found = {name: getattr(view, name) for name in (*fields, *also) if name not in without}
    for name, value in found.items():
        if type(value) not in _PLAIN:
            found[name] = _for_json(value)
    for name in _MOMENTS & found.keys():
        found[name] = iso(found[name])
    return found


def _for_json(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    return [_for_json(each) for each in value] if isinstance(value, tuple) else value


def clock(moment: float, now: float | None = None) -> str:
    """Unix seconds as a time of the day in UTC, with its date when that is not the day of `now`.

    >>> clock(3600, 7200), clock(0, 90000)
    ('01:00:00', '1970-01-01 00:00:00')
    """
    try:
        when = datetime.fromtimestamp(moment, timezone.utc)
        same = now is not None and datetime.fromtimestamp(now, timezone.utc).date() == when.date()
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{when:%H:%M:%S}" if same else f"{when:%Y-%m-%d %H:%M:%S}"


def seconds(duration: float | None) -> str:
    """A duration in two of its units at most; None is a dash.

    >>> seconds(0.0042), seconds(1.25), seconds(61), seconds(7322), seconds(180000)
    ('4.2 ms', '1.2 s', '1 min 1 s', '2 h 2 min', '2 d 2 h')
    """
    if duration is None:
        return "-"
    if duration < 0.0001:
        return "0 s" if duration <= 0 else "< 0.1 ms"
    if duration < 1:
        return f"{duration * 1000:.1f} ms" if duration < 0.01 else f"{duration * 1000:.0f} ms"
    if duration < 9.95:
        return f"{duration:.1f} s"
    whole = round(duration)
    for unit, name, below, small in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}{f' {rest} {small}' if rest else ''}"
    return f"{whole} s"


def owner(text: str) -> str:
    """Who runs a flow, in short: the host and the number of the process; see `owners.in_words`."""
    found = owners.Owner.parse(text)
    return text if found is None else f"{found.host} · {found.pid}"


class Tried(Protocol):
    """What an atom did, or did in the end, and the how-many-th time that was."""

    @property
    def action(self) -> str | None: ...
    @property
    def executions(self) -> int: ...
    @property
    def reversions(self) -> int: ...


def nth(one: Tried) -> int:
    """The how-many-th execution, or reversion, of its atom something is; 0: none."""
    return one.reversions if one.action == "revert" else one.executions


def count(number: int, what: str, many: str | None = None) -> str:
    """So many of what.

    >>> count(1, "task"), count(2000, "task"), count(2, "retry", "retries")
    ('1 task', '2,000 tasks', '2 retries')
    """
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def size(length: int) -> str:
    """A number of bytes.

    >>> size(12), size(2048), size(3 << 20)
    ('12 bytes', '2.0 kB', '3.1 MB')
    """
    if length < 1000:
        return count(length, "byte")
    for unit in ("kB", "MB"):
        length_in = length / (1e3 if unit == "kB" else 1e6)
        if length_in < 1000:
            return f"{length_in:.1f} {unit}"
    return f"{length / 1e9:.1f} GB"
