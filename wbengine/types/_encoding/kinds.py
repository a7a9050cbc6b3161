"""Kinds of classes whose values can be encoded, and reasons why a value cannot be encoded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import uuid
from typing import Any, Final

#: The kinds of classes that can be allowed, for error messages.
ALLOWABLE: Final = "an Enum, a dataclass or a NamedTuple"
ENUM: Final = "Enum"
NAMED_TUPLE: Final = "NamedTuple"
DATACLASS: Final = "dataclass"

#: Builtins, most specific first. Error messages suggest the first base class of a value's class.
_BUILTINS: Final[tuple[type, ...]] = (
    *(bool, int, float, complex, str, bytes, bytearray, dict, list, tuple, set, frozenset),
    *(dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID, pathlib.PurePath),
)


def of_class(cls: Any) -> str | None:
    """Return the kind of a class, or None if its values can never be encoded.

    An exception or a subclass of a builtin has state outside of its fields.
    """
    if not isinstance(cls, type):
        return None
    if issubclass(cls, enum.Enum):
        return ENUM
    if issubclass(cls, tuple) and type(getattr(cls, "_fields", None)) is tuple:
        return NAMED_TUPLE
    if issubclass(cls, BaseException) or _builtin_base(cls) is not None:
        return None
    if dataclasses.is_dataclass(cls):
        return DATACLASS
    return None


def _builtin_base(cls: type) -> type | None:
    return next((base for base in _BUILTINS if issubclass(cls, base)), None)


def rejection_reason(value: Any) -> str:
    """Return why a value cannot be encoded, and what to send."""
    cls = type(value)
    if isinstance(value, BaseException):
        return "cannot be encoded; send Failure.from_exception(error)"
    if of_class(cls) is not None:
        how = f"wbengine.types.codec.allow({cls.__name__})"
        return f"cannot be encoded; allow its class where it is defined: {how}"
    base = _builtin_base(cls)
    if base is not None:
        return f"cannot be encoded: it would lose its type; send {base.__name__}(value)"
    return "cannot be encoded; send the values from which the receiver can create one"
