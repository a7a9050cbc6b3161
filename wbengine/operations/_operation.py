"""Operations as data: what each does, its parameters, who may use it, and its result.

A module of `_definitions` defines one operation. Its name is that of the module: `flow_cancel` is
the operation `flow cancel`. The commands, the HTTP API, its description and the pages use the
definition.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import json_text
from wbengine.operations import _names
from wbengine.persistence import base

if TYPE_CHECKING:
    import jsonschema

    from wbengine.fleet.client import Fleet

__all__ = [
    "ADMIN",
    "EDITOR",
    "OPERATOR",
    "Button",
    "Choice",
    "Command",
    "FlowId",
    "Many",
    "Operation",
    "Parameter",
    "Reason",
    "Role",
    "ScheduleName",
    "Scope",
    "Shown",
    "Text",
    "WorkerName",
    "load",
    "operation",
    "table",
]

#: The lowest role that may use an operation; see `dashboard._roles`.
Role = Literal["viewer", "operator", "editor", "admin"]
OPERATOR: Final = "operator"
EDITOR: Final = "editor"
ADMIN: Final = "admin"

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_MAX_SHOWN_CHARS: Final = 80
#: Names of the types of JSON values, for messages.
_JSON_TYPES: Final[Mapping[type, str]] = {
    dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number",
    float: "a number", type(None): "null",
}  # fmt: skip

#: What validators of JSON schemas count, for messages.
_COUNTED: Final[Mapping[str, str]] = {
    "minLength": "characters", "maxLength": "characters",
    "minItems": "items", "maxItems": "items",
    "minProperties": "items", "maxProperties": "items",
}  # fmt: skip

Function = Callable[..., Mapping[str, Any]]
#: A template with names of arguments and of values of the result, or a function of these values.
Text = str | Callable[[Mapping[str, Any]], str]

#: Groups of commands, and collections in paths of the API, whose names are not the subject.
_GROUPS: Final[Mapping[str, str]] = {"worker": "workers", "queue": "queues", "request": "queues"}


@dataclass(frozen=True, slots=True)
class Scope:
    """The store on which an operation works, and who requested it.

    :ivar fleet: returns the workers; None: there is no broker.
    :ivar ledger: the place of the ledger of the workers; None: that of the broker.
    :ivar limits: the URL of a Redis that contains the limits; None: they are in the store.
    :ivar board: the URL of the job board; None: it is in the store.
    """

    backend: base.Backend
    by: str | None = None
    fleet: Callable[[], Fleet] | None = None
    ledger: str | None = None
    limits: str | None = None
    board: str | None = None

    def open_fleet(self) -> Fleet:
        """Return the workers.

        :raises NotFound: if there is no broker.
        :raises TransportFailure: if the broker cannot be reached.
        """
        if self.fleet is None:
            raise exceptions.NotFound("The operation needs a broker.")
        return self.fleet()


@dataclass(frozen=True, slots=True)
class Shown:
    """How the command line shows a parameter. Each value has a default.

    :ivar option: its option, if that is not its name.
    :ivar is_argument: whether it is an argument instead of an option.
    :ivar help: the help of the option, if that is not `Parameter.doc`.
    :ivar default: what the help shows as its default.
    :ivar is_duration: whether the number of seconds is given as a duration, such as 5m.
    :ivar is_time: whether the text is a time, such as 2026-11-01T08:00 or 7d (before now).
    :ivar is_assignment: whether the values of an object are given one by one, as NAME=JSON|@FILE.
    """

    option: str | None = None
    metavar: str | None = None
    is_argument: bool = False
    help: str | None = None
    default: str | None = None
    is_duration: bool = False
    is_time: bool = False
    is_assignment: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operation, as metadata of its annotation.

    :ivar doc: its meaning, as a sentence.
    :ivar schema: JSON schema of its value.
    :ivar is_target: whether it names what the operation changes. The API has it in the path.
    :ivar role: the lowest role that may use it; None: that of the operation.
    """

    doc: str
    schema: Mapping[str, Any]
    is_target: bool = False
    shown: Shown = Shown()
    role: Role | None = None

    @functools.cached_property
    def _validate(self) -> Callable[[Any], object]:
        import fastjsonschema

        document = {"$schema": _DRAFT, **self.schema}
        validate: Callable[[Any], object] = fastjsonschema.compile(
            document, use_default=False, use_formats=False, detailed_exceptions=False
        )
        return validate

    def check(self, name: str, value: Any) -> None:
        """Check the value of a JSON argument.

        :param name: its name in errors.
        :raises ValueError: if it does not satisfy the schema.
        """
        try:
            self._validate(value)
        except ValueError:  # fastjsonschema raises subclasses of this.
            _explain(name, self.schema, value)

    def convert(self, value: Any) -> Any:
        """Return a valid value, as an int where JSON has a whole number such as 5.0."""
        is_whole = self.schema.get("type") == "integer" and isinstance(value, float)
        return int(value) if is_whole else value


@dataclass(frozen=True, slots=True)
class Command:
    """How the command line shows an operation.

    :ivar examples: arguments of calls, for the help.
    :ivar line: the result; without `line` and `note`, all values are printed. Operations on flows
        also have the values `uuid`, `name`, and `before`, the displayed state before.
    :ivar note: a remark. An empty one is not printed.
    :ivar guide: a hint about the next step.
    :ivar creates_store: whether a missing store is created.
    """

    examples: tuple[str, ...] = ()
    line: Text | None = None
    note: Text | None = None
    guide: Text | None = None
    creates_store: bool = False


@dataclass(frozen=True, slots=True)
class Button:
    """How pages show an operation: as a button, with a field for each simple parameter.

    :ivar label: text of the button; by default, the verb.
    :ivar notice: notice after the operation.
    :ivar asks: confirmation before it, with {} for the name of the schedule or worker.
    :ivar is_danger: whether something is lost.
    """

    label: str | None = None
    notice: str = "Done."
    asks: str = ""
    is_danger: bool = False


@dataclass(frozen=True, slots=True)
class Many:
    """How an operation applies to many flows.

    :ivar states: displayed states of the flows that filters select without a state.
    :ivar done: what a report states about the flows, such as "deleted".
    :ivar selects: which flows that are, for the help.
    :ivar is_destructive: whether the user confirms flows that are selected by id, too.
    :ivar is_of_state: whether unfinished flows are also skipped if their state has changed since
        they were selected, unless the call has the argument `force`.
    :ivar omits_children: whether filters without a parent leave out child flows, because the
        operation on their parents concerns them, too.
    :ivar omits_forked: whether filters leave out flows that have a fork, which does the rest of
        their work.
    :ivar omits_forks: whether filters also leave out forks, unless their condition `forks` is set.
    """

    states: tuple[str, ...]
    done: str
    selects: str
    is_destructive: bool = False
    is_of_state: bool = False
    omits_children: bool = False
    omits_forked: bool = False
    omits_forks: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Parameters of which a call has exactly one or, with `is_any`, at least one."""

    names: tuple[str, ...]
    is_any: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The choice as a part of a JSON schema of the arguments."""
        required = [{"required": [name]} for name in self.names]
        return {"anyOf" if self.is_any else "oneOf": required}

    def check(self, what: str, arguments: Mapping[str, Any]) -> None:
        """Check the names of arguments.

        :param what: what requires them, for the message.
        :raises ValueError: if there are too few or too many.
        """
        count = sum(name in arguments for name in self.names)
        if count != 1 and not (self.is_any and count):
            number = "at least one" if self.is_any else "exactly one"
            raise ValueError(f"{what} requires {number} of {', '.join(self.names)}")


FlowId = Annotated[
    str,
    Parameter(
        "The uuid of the flow.",
        {"type": "string", "format": "uuid"},
        is_target=True,
        shown=Shown(metavar="ID"),
    ),
]
Reason = Annotated[
    str | None,
    Parameter("Reason, stored with the flow.", {"type": "string", "maxLength": 500}),
]
ScheduleName = Annotated[
    str,
    Parameter(
        "The name of the schedule.", {"type": "string"}, is_target=True, shown=Shown(metavar="NAME")
    ),
]
WorkerName = Annotated[
    str,
    Parameter(
        "The name of the worker, its beginning, or its host.",
        {"type": "string", "minLength": 1},
        is_target=True,
        shown=Shown(metavar="NAME"),
    ),
]


@dataclass(frozen=True)
class Operation:
    """An operation of the table.

    :ivar name: subject and verb, such as `flow cancel`.
    :ivar summary: the first line of the docstring of its function, and `description` the rest.
    :ivar required: names of the parameters without a default, and `defaults` those of the others.
    :ivar result: JSON schemas of the values in the result, by name. All are present.
    :ivar creates: whether it creates what `result` names with `uuid`.
    :ivar many: how it applies to many flows; None: its target is a single one.
    :ivar button: how pages show it; None: not.
    :ivar choice: parameters of which a call has one or some.
    """

    name: str
    summary: str
    description: str
    role: Role
    parameters: Mapping[str, Parameter]
    required: frozenset[str]
    defaults: Mapping[str, Any]
    result: Mapping[str, Mapping[str, Any]]
    creates: bool
    many: Many | None
    command: Command
    button: Button | None
    choice: Choice | None
    function: Function

    @property
    def subject(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def group(self) -> str:
        """The group of its command: `workers` of `worker drain`."""
        return _GROUPS.get(self.subject, self.subject)

    @property
    def identifier(self) -> str:
        """The name in the API description and as a tool: `flow_cancel`."""
        return self.name.replace(" ", "_")

    @property
    def schema(self) -> str:
        """The name of the schema of its result: `flow-cancel`."""
        return self.name.replace(" ", "-")

    @property
    def verb(self) -> str:
        return self.name.partition(" ")[2]

    @property
    def label(self) -> str:
        """The text of its button."""
        label = None if self.button is None else self.button.label
        return self.verb.capitalize() if label is None else label

    @property
    def is_destructive(self) -> bool:
        """Whether something is lost."""
        return (self.many is not None and self.many.is_destructive) or (
            self.button is not None and self.button.is_danger
        )

    @property
    def states(self) -> tuple[str, ...]:
        """Displayed states of the flows that filters select without a state."""
        return () if self.many is None else self.many.states

    @property
    def target(self) -> str | None:
        """The name of the parameter that names what the operation changes, if any."""
        return next((name for name, each in self.parameters.items() if each.is_target), None)

    @property
    def roles(self) -> str:
        """The roles that it needs, as a text: `operator (inputs: editor)`."""
        others = [
            f"{name}: {each.role}"
            for name, each in self.parameters.items()
            if each.role is not None
        ]
        return f"{self.role} ({', '.join(others)})" if others else self.role

    def needed_roles(self, arguments: Mapping[str, Any]) -> list[Role]:
        """Return the roles that a call needs. A caller must have each of them, or a higher one."""
        used = [each.role for name, each in self.parameters.items() if arguments.get(name)]
        return [self.role, *(role for role in used if role is not None)]

    def perform(self, scope: Scope, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check JSON arguments, and perform the operation.

        :raises ValueError: see `check`.
        :raises Exception: errors of the operation.
        """
        self.check(arguments)
        values = {name: self.parameters[name].convert(value) for name, value in arguments.items()}
        return self.function(scope, **values)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check the names and the values of JSON arguments.

        :raises ValueError: if an argument is unknown, missing or invalid.
        """
        for name in arguments:
            if name not in self.parameters:
                raise ValueError(
                    f"{self.name} has no parameter {name!r:.{_MAX_SHOWN_CHARS}}"
                    f"{object_names.hint(name, self.parameters)}"
                )
        for name in self.parameters:
            if name in self.required and name not in arguments:
                raise ValueError(f"{self.name} requires parameter {name!r}")
        for name, value in arguments.items():
            self.parameters[name].check(name, value)
            if isinstance(value, str) and not json_text.is_text(value):
                raise ValueError(f"{name} must be valid Unicode, got {value!r:.80}")
        if self.choice is not None:
            self.choice.check(self.name, arguments)


def operation(
    *,
    role: Role,
    result: Mapping[str, Mapping[str, Any]],
    creates: bool = False,
    many: Many | None = None,
    command: Command = Command(),
    button: Button | None = Button(),
    choice: Choice | None = None,
) -> Callable[[Function], Operation]:
    """Return a decorator that defines an operation by a function.

    The first parameter of the function is the `Scope`. The others are annotated with `Parameter`.
    """

    def define(function: Function) -> Operation:
        parameters, defaults = {}, {}
        hints = typing.get_type_hints(function, include_extras=True)
        for name, each in [*inspect.signature(function).parameters.items()][1:]:
            (parameters[name],) = (
                data for data in hints[name].__metadata__ if isinstance(data, Parameter)
            )
            if each.default is not inspect.Parameter.empty:
                defaults[name] = each.default
        text = inspect.getdoc(function) or ""
        return Operation(
            function.__module__.rpartition(".")[2].replace("_", " "),
            _names.first_paragraph(text),
            text.partition("\n\n")[2].strip(),
            role,
            parameters,
            frozenset(parameters.keys() - defaults),
            defaults,
            result,
            creates,
            many,
            command,
            button,
            choice,
            function,
        )

    return define


def load(name: str) -> Operation:
    """Return the operation of this name. Only its module is imported."""
    module = importlib.import_module(_names.module_of(name))
    return next(each for each in vars(module).values() if isinstance(each, Operation))


@functools.cache
def table() -> Mapping[str, Operation]:
    """Return all operations by name, ordered."""
    return {name: load(name) for name in _names.names()}


def _explain(name: str, schema: Mapping[str, Any], value: Any) -> None:
    """Raise the error for an invalid value.

    :raises ValueError: unless jsonschema accepts the value.
    """
    import jsonschema  # Slow to import.

    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema).iter_errors(value)
    )
    if error is None:
        return
    place = "".join(f"[{part!r:.{_MAX_SHOWN_CHARS}}]" for part in error.absolute_path)
    raise ValueError(f"{name}{place} must {_demand(error)}")


def _demand(error: jsonschema.ValidationError) -> str:
    """Return what the schema demands of an invalid value. The value may be secret or long."""
    validator, schema = str(error.validator), cast(Mapping[str, Any], error.schema)
    limit: Any = error.validator_value
    value: Any = error.instance
    got = _JSON_TYPES[type(value)]
    match validator:
        case "type":
            kinds = [limit] if isinstance(limit, str) else limit
            return f"be of type {' or '.join(kinds)}, got {got}"
        case "enum":
            known = [each if isinstance(each, str) else json.dumps(each) for each in limit]
            shown = f"{value!r:.{_MAX_SHOWN_CHARS}}"
            hint = object_names.hint(value, known) if isinstance(value, str) else ""
            return f"be one of {', '.join(known)}, got {shown}{hint}"
        case "pattern" | "anyOf" if "description" in schema:
            return f"be {schema['description']}, got {value!r:.{_MAX_SHOWN_CHARS}}"
        case _ if validator in _COUNTED and not value:
            return "not be empty"
        case _ if validator in _COUNTED:
            extreme = "least" if validator.startswith("min") else "most"
            return f"have at {extreme} {limit:,} {_COUNTED[validator]}, got {len(value):,}"
        case "minimum" | "maximum":
            extreme = "least" if validator == "minimum" else "most"
            return f"be at {extreme} {limit:,}, got {value!r:.{_MAX_SHOWN_CHARS}}"
        case "exclusiveMinimum":
            return f"be above {limit}, got {value!r:.{_MAX_SHOWN_CHARS}}"
        case _:
            return f"satisfy {validator} {limit!r}, got {got}"
