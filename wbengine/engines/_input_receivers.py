"""The parameters of tasks that receive the inputs of a flow."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from wbengine import flow as flow_module
from wbengine import task as task_module
from wbengine._introspection import binding, object_names

__all__ = ["Receiver", "read", "receivers"]

#: Annotations of parameters that receive inputs as they are, without `validate=True`.
_PLAIN: Final = frozenset(
    {bool, bytes, dict, float, int, list, object, str, Any, None, inspect.Parameter.empty}
)
_PLAIN_TEXTS: Final = frozenset(
    {"Any", "None", "bool", "bytes", "dict", "float", "int", "list", "object", "str", "typing.Any"}
)


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


def read(flow: Any, values: Mapping[str, Any], *, is_json: bool) -> dict[str, Any]:
    """Return inputs as values of annotated parameters. See `_flow_inputs.read`."""
    annotated = [each for each in receivers(flow, values) if not each.is_plain]
    if not annotated:
        return dict(values)
    read_annotated = object_names.load("wbengine.engines._input_types:read")
    inputs: dict[str, Any] = read_annotated(flow.name, values, annotated, is_json=is_json)
    return inputs


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
