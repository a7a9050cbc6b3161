"""Formats of times, durations, numbers and owners, for display and for JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from wbengine import states
from wbengine.persistence import _owners

__all__ = [
    "AttemptCounts", "as_dict", "clock", "count", "done", "iso", "nth", "owner", "seconds", "size",
    "took",
]  # fmt: skip

#: Fields of views that contain Unix time.
_TIME_FIELDS: Final = frozenset(
    {
        *("at", "began", "born", "created", "ended", "heard", "since", "started", "submitted"),
        *("undo_until", "until", "updated"),
    }
)
_JSON_TYPES: Final = frozenset({type(None), bool, float, int, str})
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def iso(moment: float | None) -> str | None:
    """Return Unix time as ISO 8601 in UTC with milliseconds; None for None.

    >>> iso(0)
    '1970-01-01T00:00:00.000Z'
    """
    if moment is None:
        return None
    try:
        second, micros = divmod(round(moment * 1e6), 1_000_000)
        return f"{_second(second)}.{micros // 1000:03}Z"
    except (ValueError, OverflowError, OSError):
        return None  # The clock of the writer was wrong.


@functools.lru_cache(1024)
def _second(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().removesuffix("+00:00")


def as_dict(view: Any, *also: str, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields and the properties `also` of a view for JSON. Times are ISO 8601."""
    fields = getattr(view, "_fields", None) or [field.name for field in dataclasses.fields(view)]
    result = {name: getattr(view, name) for name in (*fields, *also) if name not in without}
    for name, value in result.items():
        if type(value) not in _JSON_TYPES:
            result[name] = _for_json(value)
    for name in _TIME_FIELDS & result.keys():
        result[name] = iso(result[name])
    return result


def _for_json(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    return [_for_json(each) for each in value] if isinstance(value, tuple) else value


def clock(moment: float, now: float | None = None) -> str:
    """Return Unix time as a time of day in UTC, with the date if it differs from that of `now`.

    >>> clock(3600, 7200), clock(0, 90000)
    ('01:00:00', '1970-01-01 00:00:00')
    """
    try:
        when = datetime.fromtimestamp(moment, UTC)
        is_same_day = now is not None and datetime.fromtimestamp(now, UTC).date() == when.date()
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{when:%H:%M:%S}" if is_same_day else f"{when:%Y-%m-%d %H:%M:%S}"


def seconds(duration: float | None) -> str:
    """Return a duration with at most two units; a dash for None.

    >>> seconds(0.0042), seconds(1.25), seconds(61), seconds(7322), seconds(180000)
    ('4.2 ms', '1.2 s', '1 min 1 s', '2 h 2 min', '2 d 2 h')
    """
    if duration is None:
        return "-"
    if duration < 0.0001:
        return "0 s" if duration <= 0 else "< 0.1 ms"
    if duration < 1:
        return f"{duration * 1000:.1f} ms" if duration < 0.00995 else f"{duration * 1000:.0f} ms"
    if duration < 9.95:
        return f"{duration:.1f} s"
    total = round(duration)
    for unit, name, small_unit, small_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if total >= unit:
            remainder = total % unit // small_unit
            return f"{total // unit} {name}{f' {remainder} {small_name}' if remainder else ''}"
    return f"{total} s"


def took(execution: float | None, reversion: float | None) -> str:
    """Return the durations of an execution and of its reversion; "" if both are unknown.

    >>> took(0.265, 0.0066), took(2, None), took(None, None)
    ('265 ms, reverted in 6.6 ms', '2.0 s', '')
    """
    texts = [] if execution is None else [seconds(execution)]
    texts += [] if reversion is None else [f"reverted in {seconds(reversion)}"]
    return ", ".join(texts)


def done(counts: Mapping[str, int], step_counts: Mapping[str, int]) -> str:
    """Return the numbers of complete tasks and steps. A flow of one workflow has only steps.

    >>> done({"SUCCESS": 1, "RUNNING": 2}, {}), done({"RUNNING": 1}, {"SUCCESS": 5, "RUNNING": 2})
    ('1 of 3 tasks', '5 of 7 steps')
    >>> done({"SUCCESS": 1, "RUNNING": 1}, {"SUCCESS": 1})
    '1 of 2 tasks, 1 of 1 step'
    """
    parts = [] if step_counts and sum(counts.values()) == 1 else [_done(counts, "task")]
    return ", ".join([*parts, *([_done(step_counts, "step")] if step_counts else [])])


def _done(counts: Mapping[str, int], noun: str) -> str:
    complete = counts.get(states.SUCCESS, 0) + counts.get(states.IGNORE, 0)
    return f"{complete:,} of {count(sum(counts.values()), noun)}"


def owner(text: str) -> str:
    """Return the host and the process id of an owner; see `owners.describe`."""
    parsed_owner = _owners.Owner.parse(text)
    return text if parsed_owner is None else f"{parsed_owner.host} · {parsed_owner.pid}"


class AttemptCounts(Protocol):
    """An object with the action and the number of executions and reversions of an atom."""

    @property
    def action(self) -> str | None: ...
    @property
    def executions(self) -> int: ...
    @property
    def reversions(self) -> int: ...


def nth(attempt: AttemptCounts) -> int:
    """Return the number of executions, or for a reversion, of reversions."""
    return attempt.reversions if attempt.action == "revert" else attempt.executions


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1, "task"), count(2000, "task"), count(2, "retry", "retries")
    ('1 task', '2,000 tasks', '2 retries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(length: int) -> str:
    """Return a number of bytes with a unit.

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
