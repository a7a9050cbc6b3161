"""Fields of forms for JSON schemas, and the values in posted forms."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine.dashboard._input_fields import ABSENT, Field, FieldError, fields_of, value_of

NULL = {"type": "null"}


def field(schema: dict[str, Any], *, is_required: bool = False, name: str = "x") -> Field:
    document = {
        "properties": {name: schema},
        "required": [name] if is_required else [],
        "$defs": {"m.Speed": {"enum": ["slow", "fast"], "description": "How fast."}},
    }
    (only,) = fields_of(document, "inputs")
    return only


@pytest.mark.parametrize(
    ("schema", "kind", "initial", "text", "value"),
    [
        ({"type": "string"}, "text", "", "a b ", "a b "),
        ({"type": "string", "default": "a"}, "text", "a", "", ""),
        ({"type": "string", "default": "a\nb"}, "lines", "a\nb", "a\r\nc", "a\nc"),
        ({"type": "string", "format": "date"}, "date", "", "2026-12-01", "2026-12-01"),
        ({"type": ["string", "number"], "default": "1.50"}, "text", "1.50", "2", "2"),
        ({"type": "integer", "default": 3}, "integer", "3", "9007199254740993", 9007199254740993),
        ({"type": "number", "default": 1.5}, "number", "1.5", "2e3", 2000.0),
        ({"type": "number"}, "number", "", "2", 2),
        ({"type": "boolean", "default": True}, "checkbox", "true", None, False),
        ({"type": "boolean"}, "checkbox", "false", "true", True),
        ({"anyOf": [{"type": "boolean"}, NULL]}, "select", "", "false", False),
        ({"$ref": "#/$defs/m.Speed", "default": "slow"}, "select", '"slow"', '"fast"', "fast"),
        ({"anyOf": [{"$ref": "#/$defs/m.Speed"}, NULL], "default": "slow"}, "select", '"slow"', "",
         None),
        ({"enum": [1, "1", None], "default": 1}, "select", "1", '"1"', "1"),
        ({"anyOf": [{"type": "integer"}, NULL], "default": 3}, "integer", "3", "", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "json", "", '"7"', "7"),
        ({"type": "array", "items": {}, "default": [1]}, "json", "[\n  1\n]", "[]", []),
        ({"type": "object"}, "json", "", '{"a": 1}', {"a": 1}),
        ({"type": "object", "default": {}}, "json", "{}", '{"a": 1}', {"a": 1}),
        ({"type": "string", "default": ""}, "text", "", "a", "a"),
        ({"description": "Anything."}, "json", "", "null", None),
    ],
)  # fmt: skip
def test_schema_defines_the_field_and_its_value(
    schema: dict[str, Any], kind: str, initial: str, text: str | None, value: Any
) -> None:
    found = field(schema)
    assert (found.kind, found.initial, found.text) == (kind, initial, initial)
    read = value_of(found, text)
    assert (type(read), read) == (type(value), value)
    unchanged = None if (kind, initial) == ("checkbox", "false") else initial
    assert value_of(found, unchanged) is ABSENT


@pytest.mark.parametrize(
    ("schema", "text", "fault"),
    [
        ({"type": "integer"}, "1.5", "must be a whole number, got '1.5'"),
        ({"type": "integer"}, "9" * 5000, "must be a whole number"),
        ({"type": "number"}, "inf", "must be a number, got 'inf'"),
        ({"type": "object"}, "{", "must be JSON"),
        ({"type": "object"}, "NaN", "must be JSON"),
        ({"type": "object"}, "[" * 100_000, "must be JSON"),
        ({"type": "string"}, "", "a value is required"),
        ({"enum": ["a"]}, "", "a value is required"),
    ],
)
def test_text_that_is_not_valid_is_a_fault(schema: dict[str, Any], text: str, fault: str) -> None:
    with pytest.raises(FieldError, match=fault):
        value_of(field(schema, is_required=True), text)


def test_required_field_that_allows_null_may_be_empty() -> None:
    assert value_of(field({"anyOf": [{"type": "string"}, NULL]}, is_required=True), "") is None


def test_required_checkbox_has_a_value_if_it_is_empty() -> None:
    assert value_of(field({"type": "boolean"}, is_required=True), None) is False


def test_secret_is_a_password_without_its_default() -> None:
    found = field({"type": "string", "default": "s3cret"}, name="api_token")
    assert (found.kind, found.initial) == ("password", "")
    assert found.filled("typed", ()).text == ""


def test_required_fields_are_first_and_names_of_groups_differ() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "required": ["b"]}
    found = fields_of(schema, "arguments")
    assert [each.key for each in found] == ["arguments:b", "arguments:a"]
    assert found[0].path == "arguments['b']"
