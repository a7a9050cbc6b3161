"""Inputs of flows, which are converted or checked before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wbengine._introspection import object_names

__all__ = ["JsonInputs", "read"]


class JsonInputs(dict[str, Any]):
    """Inputs that arrived as JSON. They are converted to the types of annotated parameters."""


def read(flow: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs of a flow as values of its annotated parameters.

    `JsonInputs` are converted. Other values must be instances of the annotated classes.

    :raises ValueError: if JSON does not fit; the message contains all faults.
    :raises TypeError: if another value does not fit, or an annotation cannot be evaluated.
    """
    if not values:
        return {}
    # Loaded here, because many flows have no inputs.
    read_values = object_names.load("wbengine.engines._input_receivers:read")
    inputs: dict[str, Any] = read_values(flow, values, is_json=isinstance(values, JsonInputs))
    return inputs
