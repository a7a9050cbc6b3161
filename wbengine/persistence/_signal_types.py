"""Check of signals by the types that waiting tasks expect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema

from wbengine import _payloads
from wbengine._introspection import object_names
from wbengine._shapes.base import Place
from wbengine.persistence._listing import Wait
from wbengine.signals import Signal
from wbengine.types import codec

__all__ = ["check"]


def check(signal: Signal, waits: Iterable[Wait], stored: Iterable[Signal]) -> None:
    """Check a signal before it is sent, by the type that the first of the waits expects.

    Plain JSON must satisfy the schema. Values of Python classes must be of the expected class, if
    there is one; the task that receives the signal checks their parts.

    :param stored: the signals of the flow. If the wait receives one of them, the type of the next
        one is unknown.
    :raises ValueError: if the value does not fit.
    """
    wait = next(wait for wait in waits if wait.expects(signal.name))
    if any(each.name == signal.name and each.number >= wait.number for each in stored):
        return
    assert wait.schema is not None
    place = Place("signals").item(signal.name)
    if codec.TAG in signal.text:
        faults = _faults_of_instance(place, signal.value, wait.schema)
    else:
        validator = jsonschema.Draft202012Validator(wait.schema)
        errors = validator.iter_errors(json.loads(signal.text))
        faults = [_describe(place, error) for error in errors]
    if faults:
        raise ValueError(f"Signal was not sent: {'; '.join(faults)}")


def _faults_of_instance(place: Place, value: Any, schema: Mapping[str, Any]) -> Iterable[str]:
    if _payloads.contains_reference(value):  # The task that receives the signal loads it.
        return []
    key = str(schema.get("$ref", "")).removeprefix("#/$defs/").partition("[")[0]
    names = [object_names.dotted(cls) for cls in type(value).__mro__]
    if not key or isinstance(value, dict) or key in names:
        return []
    return [f"{place.path}: expected {key}, got {names[0]}"]


def _describe(place: Place, error: jsonschema.ValidationError) -> str:
    # The error of an alternative explains more than that of `anyOf`.
    cause: Any = jsonschema.exceptions.best_match([error])
    for step in cause.absolute_path:
        is_name = isinstance(step, str) and step.isidentifier()
        place = place.field(step) if is_name else place.item(step)
    message = "the value does not fit" if place.is_secret else f"{cause.message:.200}"
    return f"{place.path}: {message}"
