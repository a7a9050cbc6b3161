"""Attributes of builtin exceptions in plain JSON, for exceptions that are created again.

The other attributes of an exception are not stored: they can contain any object.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine._text import json_text

#: Maximum length of a stored attribute.
_MAX_LENGTH: Final = 65536
#: Maximum absolute values of numbers. Python prints a caret for each column between two offsets.
_MAX_NUMBERS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("errno", "lineno", "end_lineno", "start", "end"), 2**31),
    **dict.fromkeys(("offset", "end_offset"), _MAX_LENGTH),
}
#: Attributes that can be bytes.
_BYTES: Final = frozenset({"filename", "filename2", "object"})

_UNICODE: Final = ("encoding", "object", "start", "end", "reason")
_NAMES: Final[Mapping[type[BaseException], tuple[str, ...]]] = {
    BaseExceptionGroup: ("message",),
    OSError: ("errno", "strerror", "filename", "filename2"),
    ImportError: ("msg", "name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
    SyntaxError: ("msg", "filename", "lineno", "offset", "text", "end_lineno", "end_offset"),
    UnicodeEncodeError: _UNICODE,
    UnicodeDecodeError: _UNICODE,
    UnicodeTranslateError: _UNICODE[1:],
}


def _slots(cls: type[BaseException]) -> Iterator[tuple[str, Any]]:
    """Yield the names and the descriptors of the attributes that builtin bases of `cls` define.

    A subclass may hide them behind attributes of its own.
    """
    for builtin, names in _NAMES.items():
        if issubclass(cls, builtin):
            for name in names:
                yield name, vars(builtin)[name]


def read(error: BaseException) -> dict[str, Any]:
    """Return the attributes of `error` that are set and not too long, in plain JSON."""
    values = {name: slot.__get__(error) for name, slot in _slots(type(error))}
    return {name: _encoded(value) for name, value in values.items() if _is_valid(name, value)}


def write(error: BaseException, attributes: Mapping[str, Any]) -> None:
    """Set the attributes that `read` returned. Invalid values are ignored."""
    for name, slot in _slots(type(error)):
        value = _decoded(attributes.get(name))
        if _is_valid(name, value):
            try:
                slot.__set__(error, value)
            except (AttributeError, TypeError, OverflowError):
                pass  # The attribute is read-only or has another type.


def unicode_args(cls: type[BaseException], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a UnicodeError, which can contain bytes, or () for other classes."""
    names = [name for name, _ in _slots(cls)] if issubclass(cls, UnicodeError) else []
    values = tuple(_decoded(attributes.get(name)) for name in names)
    return values if all(map(_is_valid, names, values)) else ()


def _encoded(value: Any) -> Any:
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) is str and not json_text.is_text(value):  # It contains lone surrogates.
        return {"text": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def _decoded(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        if "text" in value:
            return base64.b64decode(value["text"], validate=True).decode("utf-8", "surrogatepass")
        return base64.b64decode(value["bytes"], validate=True)
    except (KeyError, TypeError, ValueError):
        return None


def _is_valid(name: str, value: Any) -> bool:
    if name in _MAX_NUMBERS:
        return type(value) is int and abs(value) <= _MAX_NUMBERS[name]
    is_text = type(value) is str or (type(value) is bytes and name in _BYTES)
    return is_text and len(value) <= _MAX_LENGTH
