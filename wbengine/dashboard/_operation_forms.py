"""Forms of operations: their fields, and the arguments in a posted form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine.operations import _operation
from wbengine.operations._operation import Operation

__all__ = ["arguments_of", "fields_of", "notice", "of_subject"]

_SIMPLE: Final = frozenset({"string", "integer", "number", "boolean"})


def of_subject(subject: str) -> Mapping[str, Operation]:
    """Return the operations on such objects that pages show as forms, by verb."""
    return {
        each.verb: each
        for each in _operation.table().values()
        if each.subject == subject and each.button is not None and _is_simple(each)
    }


def notice(operations: Mapping[str, Operation], verb: str) -> str | None:
    """Return the notice after an operation of `of_subject`; None for another verb."""
    operation = operations.get(verb)
    return None if operation is None or operation.button is None else operation.button.notice


def _is_simple(operation: Operation) -> bool:
    return all(
        "enum" in each.schema or each.schema.get("type") in _SIMPLE
        for name, each in operation.parameters.items()
        if name in operation.required
    )


def fields_of(operation: Operation) -> dict[str, _operation.Parameter]:
    """Return the parameters that a form has as fields, by name."""
    return {
        name: each
        for name, each in operation.parameters.items()
        if name != operation.target
        and ("enum" in each.schema or each.schema.get("type") in _SIMPLE)
    }


def arguments_of(operation: Operation, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that a form contains. An empty field is not an argument.

    :raises ValueError: if a number is invalid.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in fields_of(operation).items():
        text = form.get(name, "").strip()
        if text:
            arguments[name] = _value(name, parameter.schema.get("type"), text)
    return arguments


def _value(name: str, kind: object, text: str) -> Any:
    try:
        match kind:
            case "boolean":
                return True
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case _:
                return text
    except ValueError as error:
        raise ValueError(f"{name} must be a number, got {text!r:.40}") from error
