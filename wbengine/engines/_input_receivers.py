"""The parameters that receive the inputs of a flow, or the arguments of its factory."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import flow as flow_module
from wbengine import task as task_module
from wbengine._introspection import binding, object_names
from wbengine.engines._flow_inputs import JsonInputs

__all__ = ["Receiver", "argument_receivers", "read", "read_arguments", "receivers"]

#: Annotations of parameters that receive inputs as they are, without `validate=True`.
_PLAIN: Final = frozenset(
    {bool, bytes, dict, float, int, list, object, str, Any, None, inspect.Parameter.empty}
)
_PLAIN_TEXTS: Final = frozenset(
    {"Any", "None", "bool", "bytes", "dict", "float", "int", "list", "object", "str", "typing.Any"}
)


class Receiver(NamedTuple):
    """A parameter that receives an input of a flow, or an argument of its factory.

    :ivar input: name of the input or argument.
    :ivar owner: name of the task or factory with the parameter.
    :ivar function: the function with the parameter.
    :ivar is_validated: whether every annotation counts.
    """

    input: str
    owner: str
    function: Any
    parameter: inspect.Parameter
    is_validated: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the annotation, if any, has no effect."""
        annotation = self.parameter.annotation
        if self.is_validated:
            return annotation is inspect.Parameter.empty
        if isinstance(annotation, str):
            return annotation in _PLAIN_TEXTS
        return isinstance(annotation, type | None) and annotation in _PLAIN


def read(flow: Any, values: Mapping[str, Any], checked: Collection[str]) -> dict[str, Any]:
    """Return inputs as values of annotated parameters. See `_flow_inputs.read`.

    :param checked: names of inputs that are not converted, but must be instances.
    """
    found = receivers(flow, values)
    return _read(f"inputs of flow {flow.name!r}", "inputs", values, found, checked)


def read_arguments(
    name: str, factory: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments of a flow factory as values of its annotated parameters.

    `JsonInputs` are converted. Other arguments must be instances of the annotated classes.

    :raises InvalidInputs: if JSON does not fit; the message contains all faults.
    :raises TypeError: if another argument does not fit.
    """
    try:
        passed = inspect.signature(factory).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # The call of the factory raises the error.
        return dict(kwargs)
    found = [each for each in argument_receivers(name, factory) if each.input in passed]
    values = {each.input: passed[each.input] for each in found}
    checked = values.keys() - (kwargs.keys() if isinstance(kwargs, JsonInputs) else ())
    what = f"arguments of flow factory {name!r}"
    results = _read(what, "arguments", values, found, checked)
    return {key: results.get(key, value) for key, value in kwargs.items()}


def _read(
    what: str,
    path: str,
    values: Mapping[str, Any],
    found: Iterable[Receiver],
    checked: Collection[str],
) -> dict[str, Any]:
    annotated = [each for each in found if not each.is_plain]
    if not annotated:
        return dict(values)
    read_annotated = object_names.load("wbengine.engines._input_types:read")
    results: dict[str, Any] = read_annotated(what, path, values, annotated, checked)
    return results


def receivers(flow: Any, names: Collection[str] | None = None) -> Iterator[Receiver]:
    """Yield the parameters that receive inputs of a flow.

    :param names: names of inputs; None: all.
    """
    is_validated = getattr(flow, "validate", False) is True
    for task in _tasks(flow):
        stored = set(task.rebind.values()).difference(task.inject or ())
        if names is not None and stored.isdisjoint(names):
            continue
        body = _body(task)
        function, parameters = _function(body), binding.signature_of(body).inspected.parameters
        for argument, name in task.rebind.items():
            if name in stored and (names is None or name in names) and argument in parameters:
                yield Receiver(name, task.name, function, parameters[argument], is_validated)


def argument_receivers(name: str, factory: Any) -> list[Receiver]:
    """Return the named parameters of a flow factory.

    :raises TypeError, ValueError: if it has no signature.
    """
    parameters = inspect.signature(factory).parameters.values()
    while isinstance(factory, functools.partial):
        factory = factory.func
    body = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    function = _function(body)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        Receiver(each.name, name, function, each)
        for each in parameters
        if each.kind not in variadic
    ]


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


def _function(body: Any) -> Any:
    return inspect.unwrap(getattr(body, "__func__", body))
