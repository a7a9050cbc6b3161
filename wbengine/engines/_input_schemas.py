"""JSON schemas of the inputs of flows, and of the arguments of flow factories."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from wbengine import exceptions
from wbengine import task as task_module
from wbengine._introspection import object_names
from wbengine._shapes.base import Definitions
from wbengine.engines import _flow_factories, _input_receivers, _input_types

__all__ = ["FactorySchemas", "of_factory", "of_inputs"]


class FactorySchemas(NamedTuple):
    """The JSON schemas of what a factory needs.

    :ivar inputs: the inputs of its flow; None if it must be called with arguments.
    :ivar arguments: its arguments by name; None if it has no parameters.
    """

    inputs: dict[str, Any] | None
    arguments: dict[str, Any] | None


def of_factory(path: str) -> FactorySchemas:
    """Return the schemas of the factory at `'package.module:name'`.

    :raises Exception: as `_flow_factories.flow_of`.
    """
    arguments = _of_arguments(path)
    if arguments is not None and arguments["required"]:
        return FactorySchemas(None, arguments)
    return FactorySchemas(of_inputs(_flow_factories.flow_of(path)), arguments)


def _of_arguments(path: str) -> dict[str, Any] | None:
    try:
        factory = object_names.load(path)
        is_class = isinstance(factory, type) and issubclass(factory, task_module.Task)
        if is_class or _flow_factories.is_flow(factory):
            return None
        receivers = _input_receivers.argument_receivers(path, factory)
    except Exception:  # Creating the flow raises an error with more information.
        return None
    if not receivers:
        return None
    definitions: Definitions = {}
    properties = {each.input: _of_parameter(each, definitions) for each in receivers}
    required = (each.input for each in receivers if each.parameter.default is each.parameter.empty)
    return _object(path, properties, required, definitions)


def of_inputs(flow: Any) -> dict[str, Any]:
    """Return the JSON schema of the inputs of a flow.

    It contains the types of all annotations, also of those that `validate` would check. Inputs of
    other parameters accept all values.
    """
    definitions: Definitions = {}
    properties: dict[str, Any] = {}
    required = set()
    for receiver in _input_receivers.receivers(flow):
        name, parameter = receiver.input, receiver.parameter
        is_required = name in flow.requires and parameter.default is parameter.empty
        if not is_required and name in flow.provides:
            continue  # A result of another task.
        if is_required:
            required.add(name)
        schema = _of_parameter(receiver, definitions)
        # The first task with an annotation defines the type.
        if not properties.get(name, {}).keys() - {"description"}:
            properties[name] = schema
    return _object(flow.name, properties, required, definitions)


def _object(
    title: str, properties: dict[str, Any], required: Iterable[str], definitions: Definitions
) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "properties": dict(sorted(properties.items())),
        "required": sorted(required),
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }


def _of_parameter(receiver: _input_receivers.Receiver, definitions: Definitions) -> dict[str, Any]:
    parameter, place = receiver.parameter, f"{receiver.parameter.name!r} of {receiver.owner!r}"
    if parameter.annotation is parameter.empty:
        return {"description": f"Parameter {place}, without an annotation."}
    shape = _input_types.shape_of(receiver)
    if shape is None:
        return {"description": f"Parameter {place}: {parameter.annotation}."}
    schema = shape.schema(definitions)
    if parameter.default is not parameter.empty:
        with contextlib.suppress(exceptions.NotEncodable):
            schema = {**schema, "default": shape.plain(parameter.default)}
    return schema
