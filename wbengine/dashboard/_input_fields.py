"""Fields of a form for the properties of a JSON schema, and the values in a posted form."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import exceptions
from wbengine._security import masking
from wbengine._text import json_text

__all__ = ["ABSENT", "Field", "FieldError", "any_object", "fields_of", "value_of"]

#: The value of a field that is left out, so that its default applies.
ABSENT: Final = object()

#: Texts for the formats of strings.
_FORMATS: Final[Mapping[str, str]] = {
    "date-time": "Date and time, such as 2026-12-01T08:30:00Z.",
    "time": "Time, such as 08:30.",
    "uuid": "UUID.",
    "path": "Path.",
    "ipv4": "IPv4 address.",
    "ipv6": "IPv6 address.",
}
_JSON_HINT: Final = "JSON."
_OBJECT_HINT: Final = "A JSON object."
_MAX_DIGITS: Final = 400
_MISSING: Final = "a value is required"


class FieldError(ValueError):
    """The text of a field is not valid."""


@dataclass(frozen=True)
class Field:
    """A field of a form.

    :ivar group: "inputs" or "arguments"; "" for a field with all of them.
    :ivar kind: "text", "lines", "password", "date", "integer", "number", "checkbox", "select" or
        "json".
    :ivar text: the text of the field, or the selected option.
    :ivar initial: the text for the default.
    :ivar options: the options of a select as JSON texts, with their labels.
    :ivar empty: the value of an empty text, or `ABSENT`.
    :ivar faults: texts about an invalid value.
    """

    group: str
    name: str
    kind: str
    hint: str
    is_required: bool = False
    initial: str = ""
    options: tuple[tuple[str, str], ...] = ()
    empty: Any = ABSENT
    text: str = ""
    faults: Sequence[str] = ()

    @property
    def key(self) -> str:
        """The name of the field in a posted form."""
        return f"{self.group}:{self.name}"

    @property
    def path(self) -> str:
        """The path of the value, for texts about faults."""
        return f"{self.group}[{self.name!r}]" if self.group else self.name

    @property
    def is_checked(self) -> bool:
        """Whether a checkbox is checked."""
        return self.text == "true"

    def filled(self, text: str | None, faults: Sequence[str]) -> Field:
        """Return the field with the text of a form. A secret is not repeated.

        :param text: None: the form does not contain the field, as for an empty checkbox.
        """
        kept = "" if text is None or self.kind == "password" else text
        return dataclasses.replace(self, text=kept, faults=faults)


def any_object(name: str) -> Field:
    """Return a field for an object without a schema."""
    return Field("", name, "json", _OBJECT_HINT)


def fields_of(schema: Mapping[str, Any], group: str) -> list[Field]:
    """Return one field for each property of the JSON schema of an object, required ones first."""
    required, definitions = schema["required"], schema.get("$defs", {})
    fields = [
        _field(group, name, _resolved(each, definitions), name in required, definitions)
        for name, each in schema["properties"].items()
    ]
    return sorted(fields, key=lambda field: not field.is_required)


def value_of(field: Field, text: str | None) -> Any:
    """Return the JSON value of a field in a posted form, or `ABSENT`.

    :param text: as for `Field.filled`.
    :raises FieldError: if the text is not valid.
    """
    if field.kind == "checkbox":
        text = "false" if text is None else "true"
    text = (text or "").replace("\r\n", "\n")  # Browsers send these for new lines.
    if field.kind not in ("text", "lines", "password"):
        text = text.strip()
    if not field.is_required and text == field.initial:
        return ABSENT
    if not text:
        if field.is_required and field.empty is ABSENT:
            raise FieldError(_MISSING)
        return field.empty
    match field.kind:
        case "integer":
            return _integer(text)
        case "number":
            return _number(text)
        case "json" | "select" | "checkbox":
            return _json(text)
        case _:
            return text


def _field(
    group: str,
    name: str,
    schema: Mapping[str, Any],
    is_required: bool,
    definitions: Mapping[str, Any],
) -> Field:
    schema, is_nullable = _without_null(schema, definitions)
    kind, hint = _kind(schema, is_nullable)
    default = schema.get("default")
    options: tuple[tuple[str, str], ...] = ()
    if kind == "select":
        values = schema.get("enum", [True, False])
        options = tuple((json.dumps(each), _label(each)) for each in values if each is not None)
    is_text = kind in ("text", "date")
    initial = json.dumps(default, ensure_ascii=False)
    if default is None or (is_text and isinstance(default, str)):
        initial = default or ""
    elif kind == "json" and isinstance(default, dict | list):
        initial = json.dumps(default, ensure_ascii=False, indent=2)
    if kind == "checkbox":
        initial = "true" if default is True else "false"
    if kind == "text" and "\n" in initial:
        kind = "lines"
    if kind == "text" and masking.is_secret_key(name):
        kind, initial = "password", ""
    empty: Any = ABSENT
    if is_nullable and (is_required or default is not None):
        empty = None
    elif is_text and schema.get("type") == "string" and default:
        empty = ""
    words = " ".join(filter(None, (str(schema.get("description", "")), hint)))
    return Field(group, name, kind, words, is_required, initial, options, empty, initial)


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the definition to which it refers."""
    target = definitions.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))
    return schema if target is None else {**target, **schema}


def _without_null(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> tuple[Mapping[str, Any], bool]:
    """Return the schema of the values that are not null, and whether null is allowed."""
    parts = [_resolved(each, definitions) for each in schema.get("anyOf", ())]
    others = [each for each in parts if each.get("type") != "null"]
    if len(others) == len(parts):
        return schema, None in schema.get("enum", ())
    rest: Mapping[str, Any] = others[0] if len(others) == 1 else {"anyOf": others}
    return {**rest, **{key: schema[key] for key in schema if key != "anyOf"}}, True


def _kind(schema: Mapping[str, Any], is_nullable: bool) -> tuple[str, str]:
    """Return the kind of a field, and a text about its form."""
    if "enum" in schema:
        return "select", ""
    match schema.get("type"):
        case "boolean":
            return ("select" if is_nullable else "checkbox"), ""
        case "integer" | "number" as kind:
            return kind, ""
        case "string" if schema.get("format") == "date":
            return "date", ""
        case "string" if "contentEncoding" in schema:
            return "text", f"{schema['contentEncoding']}."
        case "string":
            return "text", _FORMATS.get(schema.get("format", ""), "")
        case ["string", "number"] | ["number", "string"]:
            return "text", ""
        case _:
            return "json", _JSON_HINT


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _integer(text: str) -> int:
    try:
        if len(text) > _MAX_DIGITS:
            raise ValueError
        return int(text)
    except ValueError:
        raise FieldError(f"must be a whole number, got {text!r:.40}") from None


def _number(text: str) -> int | float:
    try:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError
        return int(text) if text.lstrip("+-").isdecimal() and len(text) < _MAX_DIGITS else value
    except ValueError:
        raise FieldError(f"must be a number, got {text!r:.40}") from None


def _json(text: str) -> Any:
    try:
        return json_text.parse(text)[0]
    except exceptions.InvalidFormat as error:
        raise FieldError(f"must be JSON: {error}") from None
