"""Values that tests encode and decode, and their comparison."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
from typing import Any, NamedTuple

from wbengine.types import codec


@codec.allow
class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1  # noqa: PIE796  (an alias on purpose)


@codec.allow
class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@codec.allow
@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0
    ready: bool = dataclasses.field(default=True, init=False)


@codec.allow
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    items: tuple[Any, ...]


@codec.allow
class Span(NamedTuple):
    start: Any
    end: Any = None


def same(one: Any, other: Any) -> bool:
    """Return whether values and nested types are equal (NaN equals NaN; 0.0 differs from -0.0)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(x, y)
            for (a, x), (b, y) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        unmatched = list(other)
        for item in one:
            position = next(
                (index for index, twin in enumerate(unmatched) if same(item, twin)), None
            )
            if position is None:
                return False
            del unmatched[position]
        return not unmatched
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, decimal.Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, (dt.datetime, dt.time)):
        return (
            one.replace(tzinfo=None) == other.replace(tzinfo=None)
            and one.fold == other.fold
            and repr(one.tzinfo) == repr(other.tzinfo)
        )
    if dataclasses.is_dataclass(one):
        return all(
            same(getattr(one, field.name), getattr(other, field.name))
            for field in dataclasses.fields(one)
        )
    return bool(one == other)
