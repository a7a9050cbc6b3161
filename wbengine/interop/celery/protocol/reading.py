"""Values of protocol fields: what each must be, and how it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from wbengine import limits
from wbengine.interop.celery.protocol import times
from wbengine.interop.celery.protocol.message import Malformed

__all__ = [
    "BOOLEAN", "COUNT", "ID", "LIST", "MAPPING", "NAMES", "SIGNATURE", "SIGNATURES", "TEXT",
    "TIME", "TIMELIMIT", "WORD", "Kind", "malformed",
]  # fmt: skip

#: Characters of an id, a name of a task or a node, and of any other text.
LONGEST_ID: Final = 255
LONGEST_WORD: Final = 1_000
LONGEST_TEXT: Final = 1_000_000
#: More of anything that is counted is a mistake.
LARGEST_COUNT: Final = 2**31 - 1
#: Seconds; a longer limit is none.
LONGEST_LIMIT: Final = 10.0**9

_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values: in words, as JSON Schema, and as what reads one (None is never asked)."""

    words: str
    schema: Mapping[str, Any]
    read: Callable[[Any, str], Any]


def malformed(field: str, value: Any, must: str) -> Malformed:
    """The error that names a field, what is in it, and what it must be."""
    return Malformed(f"{field} must be {must}, not {shown(value)}", field=field)


def shown(value: Any) -> str:
    """`value` in a line, however long or odd it is."""
    if isinstance(value, str | bytes | int | float | bool | None):
        try:
            words = repr(value if isinstance(value, int | float | None) else value[:_SHOWN])
        except ValueError:  # a number of too many digits
            return "a number of many digits"
        return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
    return f"a value of type {type(value).__name__}"


def _text(longest: int, must: str) -> Callable[[Any, str], str | None]:
    def read(value: Any, field: str) -> str | None:
        if type(value) is not str or len(value) > longest:
            raise malformed(field, value, must)
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:  # half of a pair cannot travel on
                raise malformed(field, ascii(value), must) from None
        return value or None

    return read


def _boolean(value: Any, field: str) -> bool:
    if type(value) is not bool:
        raise malformed(field, value, "true or false")
    return value


def _count(value: Any, field: str) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise malformed(field, value, f"a whole number from 0 to {LARGEST_COUNT}")
    return value


def _time(value: Any, field: str) -> datetime | None:
    """As it is told, with or without a zone."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise malformed(field, value, "a time in ISO 8601")
    try:
        return times.parse(value) if value else None
    except ValueError:
        raise malformed(field, value, "a time in ISO 8601") from None


def _seconds(value: Any, field: str) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or value != value or value < 0:
        raise malformed(field, value, "seconds, or none")
    # No limit is what 0 says to Celery.
    return float(value) if 0 < value < LONGEST_LIMIT else None


def _timelimit(value: Any, field: str) -> limits.TimeLimit:
    """A soft limit that is not below the hard one can never come, and is left out."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise malformed(field, value, "[hard, soft] in seconds, or none")
    hard, soft = _seconds(value[0], field), _seconds(value[1], field)
    if soft is not None and soft >= (math.inf if hard is None else hard):
        soft = None
    return limits.TimeLimit(soft, hard)


def _list(value: Any, field: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise malformed(field, value, "a list")
    return tuple(value)


def _mapping(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise malformed(field, value, "a mapping")
    for key in value:
        if not isinstance(key, str):
            raise malformed(field, key, "a mapping whose keys are strings")
    return dict(value)


def _names(value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise malformed(field, value, "a list of names")
    for name in value:
        if not isinstance(name, str):
            raise malformed(field, name, "a list of names")
    return tuple(value)


def _signature(value: Any, field: str) -> dict[str, Any]:
    found = _mapping(value, field)
    name = found.get("task")
    if not isinstance(name, str) or not name or len(name) > LONGEST_WORD:
        raise malformed(f"{field}.task", name, "the name of a task")
    return found


def _signatures(value: Any, field: str) -> tuple[dict[str, Any], ...]:
    """One may stand for a list of one, as Celery's own reader takes it."""
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise malformed(field, value, "a list of signatures")
    return tuple(_signature(one, f"{field}[{at}]") for at, one in enumerate(value))


_STRING: Final = {"type": "string"}
_SIGNATURE_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "minLength": 1, "maxLength": LONGEST_WORD},
        "args": {"type": ["array", "null"]},
        "kwargs": {"type": ["object", "null"]},
        "options": {"type": ["object", "null"]},
        "subtask_type": {"type": ["string", "null"]},
        "immutable": {"type": ["boolean", "null"]},
    },
    "required": ["task"],
}
_LIMIT_SCHEMA: Final = {"type": ["number", "null"], "minimum": 0}

ID: Final = Kind(
    "id", _STRING | {"maxLength": LONGEST_ID}, _text(LONGEST_ID, f"1 to {LONGEST_ID} characters")
)
WORD: Final = Kind(
    "string",
    _STRING | {"maxLength": LONGEST_WORD},
    _text(LONGEST_WORD, f"at most {LONGEST_WORD} characters"),
)
TEXT: Final = Kind(
    "string",
    _STRING | {"maxLength": LONGEST_TEXT},
    _text(LONGEST_TEXT, f"at most {LONGEST_TEXT} characters"),
)
BOOLEAN: Final = Kind("boolean", {"type": "boolean"}, _boolean)
COUNT: Final = Kind("integer", {"type": "integer", "minimum": 0, "maximum": LARGEST_COUNT}, _count)
TIME: Final = Kind("time (ISO 8601)", _STRING, _time)
TIMELIMIT: Final = Kind(
    "[hard, soft]: numbers or null",
    {"type": "array", "minItems": 2, "maxItems": 2, "items": _LIMIT_SCHEMA},
    _timelimit,
)
LIST: Final = Kind("list", {"type": "array"}, _list)
MAPPING: Final = Kind("mapping", {"type": "object"}, _mapping)
NAMES: Final = Kind("list of strings", {"type": "array", "items": _STRING}, _names)
SIGNATURE: Final = Kind("signature", _SIGNATURE_SCHEMA, _signature)
SIGNATURES: Final = Kind(
    "list of signatures",
    {"anyOf": [{"type": "array", "items": _SIGNATURE_SCHEMA}, _SIGNATURE_SCHEMA]},
    _signatures,
)
