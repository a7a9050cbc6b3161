"""Reasons why a value cannot be encoded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Any, Final

#: Builtins, most specific first. Error messages suggest the first base class of a value's class.
_BUILTINS: Final[tuple[type, ...]] = (
    *(bool, int, float, complex, str, bytes, bytearray, dict, list, tuple, set, frozenset),
    *(dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID),
)


def builtin_base(cls: type) -> type | None:
    return next((base for base in _BUILTINS if issubclass(cls, base)), None)


def reason(value: Any) -> str:
    cls = type(value)
    base = builtin_base(cls)
    if isinstance(value, BaseException):
        return "cannot be encoded; send Failure.from_exception(error)"
    if isinstance(value, enum.Enum) or (dataclasses.is_dataclass(cls) and base is None):
        how = f"wbengine.types.codec.allow({cls.__name__})"
        return f"cannot be encoded; allow its class where it is defined: {how}"
    if base is tuple and hasattr(value, "_asdict"):
        return "cannot be encoded: it would lose its type; send tuple(value) or value._asdict()"
    if base is not None:
        return f"cannot be encoded: it would lose its type; send {base.__name__}(value)"
    return "cannot be encoded; send the values from which the receiver can create one"
