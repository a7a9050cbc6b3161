"""Conversion and check of inputs and arguments by the annotations of parameters."""

from __future__ import annotations

import types
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from wbengine._shapes.annotations import evaluated
from wbengine._shapes.annotations import shape_of as shape_of_annotation
from wbengine._shapes.base import INVALID, Place, Reading, Shape, describe
from wbengine.engines import _input_receivers

__all__ = ["InvalidInputs", "read", "shape_of"]

#: Shapes by function and name of the parameter.
_cache: Final[weakref.WeakKeyDictionary[Any, dict[str, Shape | None]]] = weakref.WeakKeyDictionary()


class InvalidInputs(ValueError):
    """Inputs or arguments in JSON that do not fit the annotated parameters.

    :ivar path: "inputs" or "arguments".
    :ivar faults: the faults of each value by its name. A fault begins with the path of the value.
    """

    def __init__(self, message: str, path: str, faults: Mapping[str, Sequence[str]]) -> None:
        super().__init__(message)
        self.path = path
        self.faults = faults


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
                    f"Annotation of {name!r} of {receiver.owner!r} cannot be evaluated:"
                    f" {type(error).__name__}: {error}"
                ) from error
            shapes[name] = None
    return shapes[name]


def read(
    what: str,
    path: str,
    values: Mapping[str, Any],
    receivers: Sequence[_input_receivers.Receiver],
    checked: Collection[str],
) -> dict[str, Any]:
    """Return inputs or arguments as values of annotated parameters. See `_flow_inputs.read`.

    :param what: description of the values for the error.
    :param path: path of all values.
    :param checked: names of values that are not converted, but must be instances.
    """
    results = dict(values)
    readings: dict[str, Reading] = {}
    first_receivers: dict[str, tuple[_input_receivers.Receiver, Shape]] = {}
    for receiver in receivers:
        shape, name = shape_of(receiver), receiver.input
        if shape is None or not (shape.is_structured or receiver.is_validated):
            continue
        place = Place(path).item(name)
        reading = readings.setdefault(name, Reading(strict=name in checked))
        first, first_shape = first_receivers.setdefault(name, (receiver, shape))
        if first is receiver:
            result = shape.read(values[name], place, reading)
            if not reading.strict or result is INVALID:
                results[name] = result
        elif (
            # The tasks that receive an input get the same value.
            results[name] is not INVALID
            and shape.read(results[name], place, Reading(strict=True)) is INVALID
        ):
            reading.add(
                place,
                f"task {receiver.owner!r} expects {shape.name}, but {first.owner!r}"
                f" expects {first_shape.name}",
            )
    faults = {name: each.faults for name, each in readings.items() if each.faults}
    if faults:
        message = f"Invalid {what}: {describe([each for some in faults.values() for each in some])}"
        if any(readings[name].strict for name in faults):
            raise TypeError(message)
        raise InvalidInputs(message, path, faults)
    return results
