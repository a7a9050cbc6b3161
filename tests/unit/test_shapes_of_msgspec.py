"""Conversion of JSON to structs of msgspec."""

import datetime as dt
from typing import Any

import jsonschema
import pytest

from wbengine._shapes import annotations
from wbengine._shapes.base import INVALID, Place, Reading

msgspec: Any = pytest.importorskip("msgspec")

Event: Any = msgspec.defstruct("Event", [("at", dt.datetime), ("values", list[int], [])])
NOON = "2026-11-28T12:00:00Z"


def test_json_becomes_a_struct() -> None:
    reading = Reading(strict=False)
    (event,) = annotations.shape_of(list[Event]).read([{"at": NOON}], Place("v"), reading)
    assert event == Event(dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC))
    assert annotations.shape_of(Event).read(event, Place("v"), Reading(strict=True)) is event


def test_fault_names_the_path() -> None:
    reading = Reading(strict=False)
    value = {"at": NOON, "values": [1, "a"]}
    assert annotations.shape_of(Event).read(value, Place("v"), reading) is INVALID
    assert reading.describe() == "v.values[1]: Expected `int`, got `str`"


def test_schema_is_that_of_msgspec() -> None:
    definitions: dict[str, Any] = {}
    schema = annotations.shape_of(Event).schema(definitions)
    validator = jsonschema.Draft202012Validator({**schema, "$defs": definitions})
    validator.validate({"at": NOON})
    assert not validator.is_valid({"at": NOON, "values": ["a"]})
