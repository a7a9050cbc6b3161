"""Inputs of flows and arguments of flow factories, converted or checked before they are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from wbengine._introspection import object_names

__all__ = ["InvalidInputs", "JsonInputs", "read", "read_arguments"]


class JsonInputs(dict[str, Any]):
    """Inputs that arrived as JSON. They are converted to the types of annotated parameters.

    :ivar checked: names of the values that did not arrive as JSON. They must be instances.
    """

    checked: Collection[str] = ()

    @classmethod
    def without(cls, values: Mapping[str, Any], checked: Collection[str]) -> Self:
        """Return inputs of which only some arrived as JSON.

        :param checked: names of the other ones.
        """
        inputs = cls(values)
        inputs.checked = checked
        return inputs


class InvalidInputs(ValueError):
    """Inputs or arguments in JSON that do not fit the annotated parameters.

    :ivar path: "inputs" or "arguments".
    :ivar faults: the faults of each value by its name. A fault begins with the path of the value.
    """

    def __init__(self, message: str, path: str, faults: Mapping[str, Sequence[str]]) -> None:
        super().__init__(message)
        self.path = path
        self.faults = faults


def read(flow: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs of a flow as values of its annotated parameters.

    `JsonInputs` are converted. Other values must be instances of the annotated classes.

    :raises InvalidInputs: if JSON does not fit; the message contains all faults.
    :raises TypeError: if another value does not fit, or an annotation cannot be evaluated.
    """
    if not values:
        return {}
    # Loaded here, because many flows have no inputs.
    read_values = object_names.load("wbengine.engines._input_receivers:read")
    inputs: dict[str, Any] = read_values(flow, values, _checked(values))
    return inputs


def read_arguments(
    name: str, factory: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments of a flow factory as values of its annotated parameters.

    `JsonInputs` are converted. Other arguments must be instances of the annotated classes.

    :raises InvalidInputs, TypeError: as `read`.
    """
    if not args and not kwargs:
        return {}
    read_values = object_names.load("wbengine.engines._input_receivers:read_arguments")
    arguments: dict[str, Any] = read_values(name, factory, args, kwargs, _checked(kwargs))
    return arguments


def _checked(values: Mapping[str, Any]) -> Collection[str]:
    return values.checked if isinstance(values, JsonInputs) else values.keys()
