"""Commands that are made from the table of operations."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from wbengine import exceptions, operations
from wbengine._cli import (
    base,
    completions,
    confirmation,
    errors,
    flow_selection,
    params,
    store_access,
    stored_operation,
)
from wbengine._text import json_text, timestamps
from wbengine.operations import _operation
from wbengine.views import _flow_list

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.persistence import base as persistence
    from wbengine.persistence._listing import FlowRow

__all__ = ["Call", "create", "options_of", "split"]

_FLOW: Final = "flow"


class Call:
    """A call of the command of an operation. Subclasses add options and other output.

    :cvar extra_options: options that are not parameters of the operation.
    """

    extra_options: ClassVar[tuple[Callable[[Any], Any], ...]] = ()

    def __init__(
        self,
        context: Context,
        operation: _operation.Operation,
        backend: persistence.Backend,
        arguments: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.context = context
        self.operation = operation
        self.backend = backend
        self.arguments = arguments
        #: Values of `extra_options`.
        self.options = options
        self.by = confirmation.current_user()

    @classmethod
    @contextlib.contextmanager
    def open_store(
        cls, context: Context, operation: _operation.Operation, options: Mapping[str, Any]
    ) -> Iterator[persistence.Backend]:
        """Open the store for an operation.

        :param options: values of `extra_options`.
        """
        creates = operation.command.creates_store
        if operation.subject != _FLOW:
            store_access.check_outlives(context.settings)
        with context.backend(upgrade=creates, missing_ok=creates) as backend:
            yield backend

    def scope(self) -> _operation.Scope:
        return _operation.Scope(self.backend, self.by, board=self.context.settings.board)

    def is_selected(self, row: FlowRow) -> bool:
        """Return whether filters without `--state` select this flow, in addition to its state."""
        return True

    def perform(self, **target: str) -> Mapping[str, Any]:
        """Perform the operation and return its result."""
        with errors.failing(errors.USAGE, exceptions.NotEncodable, ValueError):
            return self.operation.perform(self.scope(), {**self.arguments, **target})

    def perform_on(self, row: FlowRow) -> Mapping[str, Any]:
        """Perform the operation on one flow."""
        return self.perform(flow=row.uuid)

    def run(self) -> int:
        """Perform an operation that is not about flows, and print the result."""
        return self.print(self.perform(), {})

    def run_one(self, row: FlowRow) -> int:
        """Perform the operation on the flow that the user named, and print the result."""
        before = _flow_list.shown_state(row)
        result = self.perform_on(row)
        return self.print(result, {"name": row.name, "uuid": row.uuid, "before": before})

    def run_flows(self, selection: flow_selection.Selection) -> int:
        """Perform the operation on the selected flows."""
        operation = self.operation
        assert operation.many is not None
        rows = flow_selection.rows_of(
            self.backend,
            selection,
            operation.states,
            self.is_selected,
            many=operation.many,
        )
        if operation.many.is_destructive:
            schema = f"{operation.schema}/1"
        elif selection.is_single and not selection.dry_run:
            return self.run_one(rows[0])
        else:
            schema = None
        arguments = {key: value for key, value in self.arguments.items() if key != "reason"}
        reason = self.arguments.get("reason")
        stored = stored_operation.Stored(self.backend, arguments, reason)
        return flow_selection.perform(
            self.context, operation, selection, rows, self.perform_on, stored, schema
        )

    def print(self, result: Mapping[str, Any], others: Mapping[str, Any]) -> int:
        """Print the result as the operation describes. `others` are values for its texts."""
        printer, command = self.context.printer, self.operation.command
        values = {**others, **self.arguments, **result}
        printer.document(f"{self.operation.schema}/1", result)
        if command.line is not None:
            printer.line(_text(command.line, values))
        elif command.note is None:
            printer.pairs(result.items())
        if command.note is not None and (note := _text(command.note, values)):
            printer.note(note)
        if command.guide is not None:
            printer.guide(_text(command.guide, values))
        return errors.OK


@functools.cache
def create(name: str, call: type[Call] = Call) -> base.Command:
    """Return the command of an operation."""
    operation = _operation.load(name)
    if operation.many is not None:
        function = _on_flows(operation, call)
    else:
        function = _on_target(operation, call)
    for option in reversed(options_of(operation)):
        function = option(function)
    for option in reversed(call.extra_options):
        function = option(function)
    if operation.many is not None:
        if operation.many.omits_forks:
            function = flow_selection.FORKS(function)
        function = flow_selection.flows_option(function)
    elif operation.target is not None:
        function = _argument(operation.target, operation.parameters[operation.target])(function)
    return base.command(operation.verb, help=_help(operation))(function)


def _on_flows(operation: _operation.Operation, call: type[Call]) -> Callable[..., int]:
    def function(context: Context, selection: flow_selection.Selection, **options: Any) -> int:
        selection.check()
        arguments, others = split(operation, options)
        with context.backend() as backend:
            return call(context, operation, backend, arguments, others).run_flows(selection)

    return function


def _on_target(operation: _operation.Operation, call: type[Call]) -> Callable[..., int]:
    def function(context: Context, **options: Any) -> int:
        arguments, others = split(operation, options)
        with call.open_store(context, operation, others) as backend:
            if operation.target != _FLOW:
                return call(context, operation, backend, arguments, others).run()
            row = operations.find(backend, arguments.pop(_FLOW))
            return call(context, operation, backend, arguments, others).run_one(row)

    return function


def split(
    operation: _operation.Operation, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the operation that were given, and the values of other options."""
    arguments: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in options.items():
        if name not in operation.parameters:
            others[name] = value
        elif value is not None:
            arguments[name] = value
    return arguments, others


def _text(text: _operation.Text, values: Mapping[str, Any]) -> str:
    return text.format_map(values) if isinstance(text, str) else text(values)


# Help and options. --------------------------------------------------------------------------------


def _help(operation: _operation.Operation) -> str:
    parts = [operation.summary, operation.description]
    if operation.many is not None:
        parts.append(f"Filters select flows {operation.many.selects}.")
    examples = operation.command.examples
    title = "Example:" if len(examples) == 1 else "Examples:"
    lines = [f"  wbengine {operation.group} {operation.verb} {each}".rstrip() for each in examples]
    if examples:
        parts.append("\n".join(["\b", title, *lines]))
    return "\n\n".join(part for part in parts if part)


def options_of(operation: _operation.Operation) -> list[Callable[[Any], Any]]:
    """Return the options and the arguments of the parameters that are not the target."""
    return [
        _argument(name, parameter, is_required=name in operation.required)
        if parameter.shown.is_argument
        else _option(operation, name, parameter)
        for name, parameter in operation.parameters.items()
        if name != operation.target
    ]


def _argument(
    name: str, parameter: _operation.Parameter, *, is_required: bool = True
) -> Callable[[Any], Any]:
    complete = getattr(completions, f"{name}s", None) if parameter.is_target else None
    return click.argument(name, metavar=parameter.shown.metavar or name.upper(),
        type=_type(parameter), shell_complete=complete, required=is_required)  # fmt: skip


def _option(
    operation: _operation.Operation, name: str, parameter: _operation.Parameter
) -> Callable[[Any], Any]:
    shown, schema = parameter.shown, parameter.schema
    spelling = shown.option or f"--{name.replace('_', '-')}"
    default = operation.defaults.get(name)
    values: dict[str, Any] = {
        "help": shown.help or parameter.doc,
        "required": name in operation.required,
        "default": None,
    }
    if schema.get("type") == "boolean":
        if default:
            return click.option(f"{spelling}/--no-{spelling[2:]}", name,
                **values, show_default=spelling[2:])  # fmt: skip
        return click.option(spelling, name, is_flag=True, **values)
    if _is_pairs(schema) or shown.is_assignment or schema.get("type") == "array":
        values |= {"multiple": True, "default": (), "callback": _collect}
    if shown.default is not None or default is not None:
        values["show_default"] = str(default if shown.default is None else shown.default)
    kind = _type(parameter)
    metavar = shown.metavar or ("TEXT" if kind is click.STRING else kind.name.upper())
    return click.option(spelling, name, type=kind, metavar=metavar, **values)


def _collect(context: click.Context, option: click.Parameter, values: Any) -> Any:
    """Return the values of a repeatable option as a list or dict; None if there are none."""
    if not values:
        return None
    has_names = option.type in (params.JSON_TAG, params.ASSIGNMENT)
    return params.once(context, option, values) if has_names else list(values)


def _is_pairs(schema: Mapping[str, Any]) -> bool:
    return "propertyNames" in schema


def _type(parameter: _operation.Parameter) -> Any:
    """Return the type of the value on the command line."""
    schema = parameter.schema
    if parameter.shown.is_duration:
        return params.WAIT
    if parameter.shown.is_time:
        return _TIME
    if parameter.shown.is_assignment:
        return params.ASSIGNMENT
    if "enum" in schema:
        return params.Choice(tuple(schema["enum"]), case_sensitive=False)
    match schema.get("type"):
        case "string":
            return _TEXT
        case "integer":
            return click.IntRange(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return _NUMBER
        case "object":
            return params.JSON_TAG if _is_pairs(schema) else params.INPUTS
        case "array" if schema.get("items", {}).get("type") == "string":
            return _TEXT
        case _:
            return params.JSON


def _checked_text(text: str) -> str:
    if not json_text.is_text(text):
        raise ValueError(f"must be valid Unicode, got {text!r:.80}")
    return text


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number, got {text!r:.40}")
    return number


def _checked_time(text: str) -> str:
    timestamps.unix_seconds(text)
    return text


_TEXT: Final = params.Parsed("TEXT", _checked_text)
_TIME: Final = params.Parsed("WHEN", _checked_time)
_NUMBER: Final = params.Parsed("N", _number)
