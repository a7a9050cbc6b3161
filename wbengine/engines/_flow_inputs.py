"""Inputs of flows, which are converted or checked before they are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Self

from wbengine._introspection import object_names

__all__ = ["JsonInputs", "read"]


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


def read(flow: Any, values: Mapping[str, Any], checked: Collection[str]) -> dict[str, Any]:
    """Return inputs of a flow as values of its annotated parameters.

    Those whose names are in `checked` must be instances. The others are JSON, and are converted.

    :raises InvalidInputs: if JSON does not fit; the message contains all faults.
    :raises TypeError: if another value does not fit, or an annotation cannot be evaluated.
    """
    if not values:
        return {}
    # Loaded here, because many flows have no inputs.
    read_values = object_names.load("wbengine.engines._input_receivers:read")
    inputs: dict[str, Any] = read_values(flow, values, checked)
    return inputs
