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
ALLOWABLE: Final = (
    "an Enum, a dataclass, a NamedTuple, an attrs class, a msgspec.Struct or a pydantic model"
)
ENUM: Final = "Enum"
NAMED_TUPLE: Final = "NamedTuple"
DATACLASS: Final = "dataclass"
ATTRS: Final = "attrs"
STRUCT: Final = "msgspec.Struct"
MODEL: Final = "pydantic model"
VALIDATED: Final = "pydantic dataclass"
URL: Final = "pydantic URL"

#: Attributes by which a class of a library is recognized, without importing the library.
_MARKS: Final = {"__attrs_attrs__": ATTRS, "__struct_fields__": STRUCT, "unicode_string": URL}

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
    is_dataclass = dataclasses.is_dataclass(cls)
    if hasattr(cls, "__pydantic_validator__"):
        return VALIDATED if is_dataclass else MODEL
    if is_dataclass:
        return DATACLASS
    return next((kind for name, kind in _MARKS.items() if hasattr(cls, name)), None)


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
    if hasattr(cls, "get_secret_value"):
        return (
            "is a secret, which is not sent or stored by accident; send value.get_secret_value()"
            " if other processes and administrators may read it"
        )
    base = _builtin_base(cls)
    if base is not None:
        return f"cannot be encoded: it would lose its type; send {base.__name__}(value)"
    return "cannot be encoded; send the values from which the receiver can create one"
