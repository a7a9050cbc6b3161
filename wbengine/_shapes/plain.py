"""Shapes of values without parts."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine._introspection import object_names
from wbengine._shapes.base import Definitions, Place, Reading, Shape
from wbengine._text import durations

__all__ = ["TEXT_CLASSES", "Anything", "Opaque", "Plain", "Text"]

#: Numbers of JSON beyond this may have lost digits.
_MAX_EXACT_FLOAT: Final = 2**53
#: Every decimal number with so many digits has a float of its own.
_MAX_EXACT_DIGITS: Final = 15
_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)

_JSON_TYPES: Final[Mapping[type, str]] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string",
}  # fmt: skip


class Anything(Shape):
    """All values."""

    name = "any value"

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        return value

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        return {}


class Opaque(Shape):
    """Instances of a class that has no form in JSON."""

    is_scalar = True

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.name = cls.__name__

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        if isinstance(value, self._cls):
            return value
        hint = "" if reading.strict else ", which has no form in JSON"
        return reading.reject(place, self.name + hint, value)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        dotted = object_names.dotted(self._cls)
        return {"description": f"An instance of {dotted}, which has no form in JSON."}


class Plain(Shape):
    """The values of a type of JSON: bool, int, float, str or None."""

    is_scalar = True

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.name = "None" if cls is type(None) else cls.__name__

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        cls, kind = self.cls, type(value)
        if kind is cls or (isinstance(value, cls) and kind is not bool):
            return value
        if cls is float and kind is int and abs(value) <= _MAX_EXACT_FLOAT:
            return float(value)
        if (
            cls is int and kind is float and not reading.strict
            and value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT
        ):  # fmt: skip
            return int(value)
        return reading.reject(place, self.name, value)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        return {"type": _JSON_TYPES[self.cls]}


class Text(Shape):
    """Instances of a class that JSON contains as a text, for example dates.

    :param parse: returns the instance of a text (or number), or raises an exception.
    """

    is_scalar = True

    def __init__(self, cls: type, parse: Callable[[Any], Any], schema: Mapping[str, Any]) -> None:
        self._cls = cls
        self._parse = parse
        self._schema = schema
        self.name = cls.__name__

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        # A datetime is a date, but not the date that the annotation means.
        is_other = self._cls is dt.date and isinstance(value, dt.datetime)
        if isinstance(value, self._cls) and not is_other:
            return value
        if not reading.strict and type(value) in (str, int, float):
            try:
                return self._parse(value)
            except (ValueError, TypeError, ArithmeticError):
                pass
        return reading.reject(place, self.name, value)

    def plain(self, value: Any) -> Any:
        if not isinstance(value, self._cls):
            return super().plain(value)
        if isinstance(value, dt.datetime | dt.date | dt.time):
            return value.isoformat()
        if isinstance(value, dt.timedelta):
            return value.total_seconds()
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        return dict(self._schema)


def _decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, float):
        text = repr(value)
        if len(text.partition("e")[0].replace(".", "").lstrip("-0")) > _MAX_EXACT_DIGITS:
            raise ValueError("the number may have lost digits")
    else:
        text = str(value)
    if not _DECIMAL.fullmatch(text):
        raise ValueError("not a decimal number")
    return decimal.Decimal(text)


def _timedelta(value: Any) -> dt.timedelta:
    seconds = durations.seconds(value) if isinstance(value, str) else value
    if seconds is None:
        raise ValueError("not a duration")
    return dt.timedelta(seconds=seconds)


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(_string(text), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _from_text(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: parse(_string(value))


def _formatted(format_name: str) -> Mapping[str, Any]:
    return {"type": "string", "format": format_name}


def _path(cls: type[pathlib.PurePath]) -> tuple[Callable[[Any], Any], Mapping[str, Any]]:
    return _from_text(cls), _formatted("path")


#: How values of a class are read from JSON, and the JSON schema.
TEXT_CLASSES: Final[Mapping[type, tuple[Callable[[Any], Any], Mapping[str, Any]]]] = {
    decimal.Decimal: (
        _decimal,
        {"type": ["string", "number"], "description": "A decimal number, as a text or a number."},
    ),
    dt.datetime: (_from_text(dt.datetime.fromisoformat), _formatted("date-time")),
    dt.date: (_from_text(dt.date.fromisoformat), _formatted("date")),
    dt.time: (_from_text(dt.time.fromisoformat), _formatted("time")),
    dt.timedelta: (
        _timedelta,
        {
            "type": ["number", "string"],
            "description": "A number of seconds, or a duration such as 90s, 5m or 2h.",
        },
    ),
    uuid.UUID: (_from_text(uuid.UUID), _formatted("uuid")),
    bytes: (_bytes, {"type": "string", "contentEncoding": "base64"}),
    ipaddress.IPv4Address: (_from_text(ipaddress.IPv4Address), _formatted("ipv4")),
    ipaddress.IPv6Address: (_from_text(ipaddress.IPv6Address), _formatted("ipv6")),
    **{
        cls: (_from_text(cls), {"type": "string"})
        for cls in (
            *(ipaddress.IPv4Network, ipaddress.IPv6Network),
            *(ipaddress.IPv4Interface, ipaddress.IPv6Interface),
        )
    },
    **{
        cls: _path(cls)
        for cls in (pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.Path)
    },
}
