"""Inputs of flows, and the parameters of tasks that receive them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from wbengine import flow as flow_module
from wbengine import task as task_module
from wbengine._introspection import binding, object_names

__all__ = ["JsonInputs", "Receiver", "read", "receivers"]

#: Annotations of parameters that receive inputs as they are, without `validate=True`.
_PLAIN: Final = frozenset(
    {bool, bytes, dict, float, int, list, object, str, Any, None, inspect.Parameter.empty}
)
_PLAIN_TEXTS: Final = frozenset(
    {"Any", "None", "bool", "bytes", "dict", "float", "int", "list", "object", "str", "typing.Any"}
)


class JsonInputs(dict[str, Any]):
    """Inputs that arrived as JSON. They are converted to the types of annotated parameters."""


class Receiver(NamedTuple):
    """A parameter of a task that receives an input.

    :ivar is_validated: whether every annotation counts.
    """

    input: str
    task: Any
    parameter: inspect.Parameter
    is_validated: bool

    @property
    def function(self) -> Any:
        """The function with the parameter."""
        return inspect.unwrap(getattr(_body(self.task), "__func__", _body(self.task)))

    @property
    def is_plain(self) -> bool:
        """Whether the annotation, if any, has no effect."""
        annotation = self.parameter.annotation
        if self.is_validated:
            return annotation is inspect.Parameter.empty
        if isinstance(annotation, str):
            return annotation in _PLAIN_TEXTS
        return isinstance(annotation, type | None) and annotation in _PLAIN


def read(flow: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs of a flow as values of its annotated parameters.

    `JsonInputs` are converted. Other values must be instances of the annotated classes.

    :raises ValueError: if JSON does not fit; the message contains all faults.
    :raises TypeError: if another value does not fit, or an annotation cannot be evaluated.
    """
    if not values:
        return dict(values)
    annotated = [each for each in receivers(flow, values) if not each.is_plain]
    if not annotated:
        return dict(values)
    read_all = object_names.load("wbengine.engines._input_types:read")
    is_json = isinstance(values, JsonInputs)
    read_values: dict[str, Any] = read_all(flow.name, values, annotated, is_json=is_json)
    return read_values


def receivers(flow: Any, names: Collection[str] | None = None) -> Iterator[Receiver]:
    """Yield the parameters that receive inputs of a flow.

    :param names: names of inputs; None: all.
    """
    is_validated = getattr(flow, "validate", False) is True
    for task in _tasks(flow):
        stored = set(task.rebind.values()).difference(task.inject or ())
        if names is not None and stored.isdisjoint(names):
            continue
        parameters = binding.signature_of(_body(task)).inspected.parameters
        for argument, name in task.rebind.items():
            if name in stored and (names is None or name in names) and argument in parameters:
                yield Receiver(name, task, parameters[argument], is_validated)


def _tasks(flow: Any) -> Iterator[Any]:
    """Yield the tasks of a flow and of its nested flows."""
    open_flows = [flow]
    while open_flows:
        member = open_flows.pop()
        if isinstance(member, flow_module.Flow):
            open_flows.extend(reversed([node for node, _ in member.iter_nodes()]))
        elif isinstance(member, task_module.Task):
            yield member


def _body(task: Any) -> Any:
    """Return the method that receives the arguments of a task."""
    return task.inner.execute if task.fans_out else task.execute
