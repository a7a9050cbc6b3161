"""Words of typed JSON: its limits, and the values without parts, how each is written and read."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from wbengine import _names

Parts = dict[str, Any]

#: The one key that no plain JSON object of ours has.
TAG: Final = "$wbe"
#: Most tags have one key besides that.
ONE_KEY: Final = frozenset({"v"})
#: How many JSON containers may stand inside each other (a tag counts as the objects it is made of).
MAX_DEPTH: Final = 64
#: Longest integer, in decimal digits: what Python itself reads by default.
MAX_DIGITS: Final = 4300

#: The classes that were registered, by their dotted names.
allowed: Final[dict[str, type]] = {}

#: Most specific first: what a subclass of two of them would be converted to.
BUILTINS: Final[tuple[type, ...]] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    dict,
    list,
    tuple,
    set,
    frozenset,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
)

_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FLOATS: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def _write_moment(value: dt.datetime | dt.time) -> Parts:
    zone = value.tzinfo
    parts: Parts = {"fold": 1} if value.fold else {}
    if type(zone) is zoneinfo.ZoneInfo:
        if zone.key is None:
            raise ValueError("cannot be encoded: its time zone has no key")
        return {"v": value.replace(tzinfo=None).isoformat(), "zone": zone.key, **parts}
    if zone is not None and type(zone) is not dt.timezone:
        raise ValueError(f"cannot be encoded: its tzinfo is a {type(zone).__qualname__}")
    if zone is not None:
        # The offset of a fixed zone; its name, if it was given one, is the second argument.
        arguments = zone.__getinitargs__()  # type: ignore[attr-defined]
        if len(arguments) > 1:
            parts["name"] = arguments[1]
        if isinstance(value, dt.time):
            # A time's own text has the offset too, but only a datetime's is exact in all versions.
            parts["offset"] = arguments[0] // _MICROSECOND
            return {"v": value.replace(tzinfo=None).isoformat(), **parts}
    return {"v": value.isoformat(), **parts}


def _read_moment(cls: type[dt.datetime] | type[dt.time]) -> Callable[[Parts], Any]:
    def read(parts: Parts) -> Any:
        value = cls.fromisoformat(parts["v"])
        fold = parts.get("fold", 0)
        if type(fold) is not int:
            raise TypeError("fold is not a number")
        if "zone" in parts:
            zone: dt.tzinfo | None = zoneinfo.ZoneInfo(_text(parts, "zone"))
        elif "offset" in parts or "name" in parts:
            offset = (
                dt.timedelta(microseconds=parts["offset"])
                if "offset" in parts
                else value.utcoffset()
            )
            if offset is None:
                raise ValueError("a name without an offset")
            zone = dt.timezone(offset, *([_text(parts, "name")] if "name" in parts else []))
        else:
            zone = value.tzinfo
        return value.replace(tzinfo=zone, fold=fold)

    return read


def _write_text(value: Any) -> Parts:
    return {"v": str(value)}


def _write_bytes(value: bytes) -> Parts:
    return {"v": base64.b64encode(value).decode()}


def _read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _write_str(value: str) -> Parts:
    return _write_bytes(value.encode("utf-8", "surrogatepass"))


def _read_str(text: str) -> str:
    return _read_bytes(text).decode("utf-8", "surrogatepass")


def _text(parts: Parts, key: str = "v") -> str:
    value = parts[key]
    if type(value) is not str:
        raise TypeError(f"{key} is not a string")
    return value


def _from_text(read: Callable[[str], Any]) -> Callable[[Parts], Any]:
    def reader(parts: Parts) -> Any:
        return read(_text(parts))

    return reader


def _read_duration(parts: Parts) -> dt.timedelta:
    if type(parts["v"]) is not int:
        raise TypeError("v is not a number of microseconds")
    return parts["v"] * _MICROSECOND


class Leaf(NamedTuple):
    """A tag without parts: `write` gives its keys, `read` takes them; there are no others.

    The text of a ValueError of `write` is why it is refused; `read` raises what constructors raise.
    """

    name: str
    cls: type
    write: Callable[[Any], Parts]
    read: Callable[[Parts], Any]
    keys: frozenset[str] = ONE_KEY


_MOMENT: Final = frozenset({"v", "zone", "name", "offset", "fold"})

LEAVES: Final = (
    Leaf("str", str, _write_str, _from_text(_read_str)),
    Leaf("float", float, lambda value: {"v": repr(value)}, _from_text(_FLOATS.__getitem__)),
    Leaf("bytes", bytes, _write_bytes, _from_text(_read_bytes)),
    Leaf("complex", complex, lambda value: {"v": repr(value)}, _from_text(complex)),
    Leaf("decimal", decimal.Decimal, _write_text, _from_text(decimal.Decimal)),
    Leaf("uuid", uuid.UUID, _write_text, _from_text(uuid.UUID)),
    Leaf("datetime", dt.datetime, _write_moment, _read_moment(dt.datetime), _MOMENT),
    Leaf("time", dt.time, _write_moment, _read_moment(dt.time), _MOMENT),
    Leaf("date", dt.date, _write_text, _from_text(dt.date.fromisoformat)),
    Leaf("timedelta", dt.timedelta, lambda value: {"v": value // _MICROSECOND}, _read_duration),
)


class Unfit(Exception):
    """What cannot be written, or read; on its way up it collects the path in reverse."""

    def __init__(self, reason: str, culprit: Any = None) -> None:
        super().__init__(reason)
        self.culprit = culprit
        self._path: list[str] = []

    def inside(self, step: str) -> None:
        """It is at `step` of what holds it."""
        self._path.append(step)

    @property
    def path(self) -> str:
        return "".join(reversed(self._path))


def is_text(value: str) -> bool:
    """Whether UTF-8 can have it: there are no lone surrogates in it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = _names.dotted(type(value))
    return text if len(text) <= 40 else text[:37] + "..."
