"""Tags as texts on the command line and as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine._text import terminal_text, timestamps
from wbengine.types import _tags

__all__ = [
    "CONDITION_SCHEMA", "KEYS_SCHEMA", "READERS", "SCHEMA", "TEXTS_SCHEMA", "from_json", "to_json",
]  # fmt: skip

_KEY_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": _tags.KEY_FORM,
    "pattern": f"^{_tags.KEY.pattern}$",
    "maxLength": _tags.MAX_KEY_LENGTH,
}
_TEXT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": _tags.TEXT_FORM,
    "pattern": terminal_text.TRIMMED,
    "maxLength": _tags.MAX_TEXT_LENGTH,
}
_NUMBER: Final = r"-?(?:0|[1-9][0-9]{0,14})(?:[.][0-9]{1,9})?"
_TAGS_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object", "propertyNames": _KEY_SCHEMA, "maxProperties": _tags.MAX_TAGS
}  # fmt: skip
#: JSON schemas of tags that are texts, of tags (see `from_json`), and of keys.
TEXTS_SCHEMA: Final[Mapping[str, Any]] = {**_TAGS_SCHEMA, "additionalProperties": _TEXT_SCHEMA}
SCHEMA: Final[Mapping[str, Any]] = {
    **_TAGS_SCHEMA,
    "additionalProperties": {
        "description": f"a text of {_tags.TEXT_FORM}, a number, a boolean, or a time"
        ' such as {"time": "2026-12-01"}',
        "anyOf": [
            _TEXT_SCHEMA,
            {
                "type": "number",
                "minimum": -_tags.MAX_WHOLE_NUMBER,
                "maximum": _tags.MAX_WHOLE_NUMBER,
            },
            {"type": "boolean"},
            {
                "type": "object",
                "properties": {"time": {"type": "string", "pattern": f"^{timestamps.ISO}$"}},
                "required": ["time"],
                "additionalProperties": False,
            },
        ],
    },
}
KEYS_SCHEMA: Final[Mapping[str, Any]] = {"type": "array", "items": _KEY_SCHEMA}
#: JSON schema of a condition; `Condition.parse` checks it.
CONDITION_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "description": "a tag such as team=billing or amount>100",
    "pattern": rf"^{_tags.KEY.pattern}"
    rf"(?:={terminal_text.TRIMMED[1:-1]}|[<>]=?(?:{_NUMBER}|{timestamps.ISO}))$",
}


def _parse(text: str) -> tuple[str, _tags.Value]:
    """Return the key and the value of a tag on the command line.

    `team=billing` is a text. `amount:=120.5`, `paid:=true` and `due:=2026-12-01` are a number, a
    boolean and a time (UTC by default).

    :raises ValueError: if it is invalid.
    """
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"must be a tag such as team=billing or amount:=120, got {text!r:.80}")
    if not key.endswith(":"):
        condition = _tags.Condition.parse(text)
        if condition.operator != "=":
            raise ValueError(f"must be a tag such as team=billing or amount:=120, got {text!r:.80}")
        return condition.key, condition.text
    key = _tags.check_key(key[:-1])
    if value in ("true", "false"):
        return key, value == "true"
    return key, _tags.check_value(key, _tags.number_or_time(key, value))


def to_json(value: _tags.Value) -> Any:
    """Return a value as JSON: a time is an object with `time` in ISO 8601."""
    return {"time": value.isoformat()} if isinstance(value, dt.datetime) else value


def from_json(tags: Mapping[str, Any] | None) -> dict[str, _tags.Value]:
    """Return the valid tags in a JSON object that satisfies `SCHEMA`. Times are in UTC by default.

    :raises ValueError: if a value is invalid.
    """
    return _tags.check(
        {
            key: _tags.number_or_time(key, value["time"]) if isinstance(value, Mapping) else value
            for key, value in (tags or {}).items()
        }
    )


def _parse_text(text: str) -> tuple[str, str]:
    key, value = _parse(text)
    if not isinstance(value, str):
        raise ValueError(f"must be a text such as team=billing, got {text!r:.80}")
    return key, value


def _parse_to_json(text: str) -> tuple[str, Any]:
    key, value = _parse(text)
    return key, to_json(value)


#: Functions that read the text of an option.
READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "value": _parse,
    "json": _parse_to_json,
    "text": _parse_text,
    "condition": _tags.Condition.parse,
}
