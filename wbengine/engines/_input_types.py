"""Conversion and check of inputs by the annotations of parameters."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions
from wbengine._shapes.annotations import evaluated
from wbengine._shapes.annotations import shape_of as shape_of_annotation
from wbengine._shapes.base import INVALID, Definitions, Place, Reading, Shape
from wbengine.engines import _input_receivers
from wbengine.types import codec

__all__ = ["read", "schema_of", "shape_of"]

#: Shapes by function and name of the parameter.
_cache: Final[weakref.WeakKeyDictionary[Any, dict[str, Shape | None]]] = weakref.WeakKeyDictionary()


def shape_of(receiver: _input_receivers.Receiver) -> Shape | None:
    """Return the shape of a parameter, or None if its annotation cannot be evaluated.

    :raises TypeError: if it cannot be evaluated and every annotation counts.
    """
    function, name = receiver.function, receiver.parameter.name
    shapes = _cache.setdefault(function, {}) if isinstance(function, types.FunctionType) else {}
    if name not in shapes:
        try:
            annotation = evaluated(receiver.parameter.annotation, function)
            shapes[name] = shape_of_annotation(annotation)
        except Exception as error:  # For example a name that only type checkers import.
            if receiver.is_validated:
                raise TypeError(
                    f"Annotation of {name!r} of {receiver.task.name!r} cannot be evaluated:"
                    f" {type(error).__name__}: {error}"
                ) from error
            shapes[name] = None
    return shapes[name]


def read(
    flow_name: str,
    values: Mapping[str, Any],
    receivers: Sequence[_input_receivers.Receiver],
    *,
    is_json: bool,
) -> dict[str, Any]:
    """Return inputs as values of annotated parameters. See `_flow_inputs.read`."""
    results = dict(values)
    reading = Reading(strict=not is_json)
    first_receivers: dict[str, tuple[_input_receivers.Receiver, Shape]] = {}
    for receiver in receivers:
        shape, name = shape_of(receiver), receiver.input
        if shape is None or not (shape.is_structured or receiver.is_validated):
            continue
        place = Place("inputs").item(name)
        first, first_shape = first_receivers.setdefault(name, (receiver, shape))
        if first is receiver:
            result = shape.read(values[name], place, reading)
            if is_json or result is INVALID:
                results[name] = result
        elif (
            # The tasks that receive an input get the same value.
            results[name] is not INVALID
            and shape.read(results[name], place, Reading(strict=True)) is INVALID
        ):
            reading.add(
                place,
                f"task {receiver.task.name!r} expects {shape.name}, but {first.task.name!r}"
                f" expects {first_shape.name}",
            )
    if reading.faults:
        error = ValueError if is_json else TypeError
        raise error(f"Invalid inputs of flow {flow_name!r}: {reading.describe()}")
    return results


def schema_of(flow: Any) -> dict[str, Any]:
    """Return the JSON schema of the inputs of a flow.

    It contains the types of all annotations, also of those that `validate` would check. Inputs of
    other parameters accept all values.
    """
    definitions: Definitions = {}
    properties: dict[str, Any] = {}
    required = []
    for receiver in _input_receivers.receivers(flow):
        name, parameter = receiver.input, receiver.parameter
        is_required = name in flow.requires and parameter.default is parameter.empty
        if not is_required and name in flow.provides:
            continue  # A result of another task.
        if is_required and name not in required:
            required.append(name)
        schema = _schema_of_parameter(receiver, definitions)
        # The first task with an annotation defines the type.
        if not properties.get(name, {}).keys() - {"description"}:
            properties[name] = schema
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": flow.name,
        "type": "object",
        "properties": dict(sorted(properties.items())),
        "required": sorted(required),
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }


def _schema_of_parameter(
    receiver: _input_receivers.Receiver, definitions: Definitions
) -> dict[str, Any]:
    parameter, place = receiver.parameter, f"{receiver.parameter.name!r} of {receiver.task.name!r}"
    if parameter.annotation is parameter.empty:
        return {"description": f"Parameter {place}, without an annotation."}
    shape = shape_of(receiver)
    if shape is None:
        return {"description": f"Parameter {place}: {parameter.annotation}."}
    schema = shape.schema(definitions)
    if parameter.default is not parameter.empty:
        with contextlib.suppress(exceptions.NotEncodable):
            schema = {**schema, "default": codec.plain(parameter.default)}
    return schema
