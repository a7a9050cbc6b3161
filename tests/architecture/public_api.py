"""The public interface, computed from the code and the documentation.

`python -m tests.architecture.public_api` writes the list to `public_api.txt`.
"""

from __future__ import annotations

import ast
import configparser
import dataclasses
import enum
import functools
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import click

from . import imports

FILE = pathlib.Path(__file__).with_name("public_api.txt")

REFERENCE = imports.ROOT / "doc" / "source" / "reference"

_DOCUMENTS = (imports.ROOT / "README.md", imports.ROOT / "doc" / "source")
_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)\n((?: .*\n)*)", re.MULTILINE)
_MEMBERS = re.compile(r"^   :members: (.+\n(?:      .+\n)*)", re.MULTILINE)
_KINDS = ("module", "class", "exception", "function", "data")
_VARIABLE = re.compile(r"WBENGINE_[A-Z_]*[A-Z]")
_WIRE = "wbengine.engines.worker_based"
_ENGINE_OPTIONS = {
    "all": "COMMON",
    "serial, parallel": "LOCAL",
    "worker-based": "WORKER_BASED",
}
_SCHEMAS = ("QUESTION", "ANSWER", "REQUEST", "RESPONSE", "ASK", "CANCEL", "CONTROL")


def entries() -> list[str]:
    """Return all entries, sorted."""
    return sorted({
        *_python(),
        *_commands(),
        *_configuration(),
        *_entry_points(),
        *_metrics(),
        *_messages(),
        *_endpoints(),
    })  # fmt: skip


# Python names.


@functools.cache
def documented() -> Mapping[str, tuple[str, ...]]:
    """Return the names that the reference documents, each with its documented members.

    :raises ValueError: if a page documents names in another way, or a name twice.
    """
    names: dict[str, tuple[str, ...]] = {}
    for path in sorted(REFERENCE.glob("*.rst")):
        for kind, name, options in _DIRECTIVE.findall(path.read_text(encoding="utf-8")):
            members = _MEMBERS.search(options)
            is_public = kind in _KINDS and "._" not in name and name not in names
            if not is_public or (members is None and ":members:" in options):
                raise ValueError(
                    f"{path.name}: each name must be public and documented once, with a list of"
                    f" members, got auto{kind}:: {name}"
                )
            names[name] = tuple(members[1].replace(",", " ").split()) if members else ()
    return names


@functools.cache
def modules() -> Mapping[str, pathlib.Path]:
    return imports.modules(imports.ROOT / "wbengine")


@functools.cache
def find(name: str) -> tuple[str, Any]:
    """Return the module of a dotted name, and the object.

    :raises ValueError: if the name is not in a module of wbengine.
    :raises AttributeError: if the object does not exist.
    """
    module = name
    while module not in modules():
        if not module:
            raise ValueError(f"{name} is not in a module of wbengine")
        module = module.rpartition(".")[0]
    value: Any = importlib.import_module(module)
    for part in filter(None, name[len(module) + 1 :].split(".")):
        value = getattr(value, part)
    return module, value


def documentation() -> Iterator[str]:
    for place in _DOCUMENTS:
        paths = [place] if place.is_file() else [*place.rglob("*.rst"), *place.rglob("*.md")]
        for path in paths:
            yield from path.read_text(encoding="utf-8").splitlines()


def _python() -> Iterator[str]:
    public: dict[type, str] = {}
    for name in documented():
        if isinstance(value := find(name)[1], type):
            public.setdefault(value, name)
    for name, members in documented().items():
        module, value = find(name)
        if isinstance(value, type) and public[value] != name:
            yield f"alias {name} of {public[value]}"
        elif isinstance(value, type):
            yield from class_entries(name, value, members, public)
        elif inspect.isroutine(value):
            yield f"function {name}{_signature(value)}"
        elif module != name:
            yield f"constant {name}"


@functools.cache
def tree(module: str) -> ast.Module:
    return parse(modules()[module])


def parse(file: str | pathlib.Path) -> ast.Module:
    return ast.parse(pathlib.Path(file).read_text(encoding="utf-8"))


def class_entries(
    place: str, cls: type, documented_members: Iterable[str], public: Mapping[type, str]
) -> Iterator[str]:
    """Yield a class with its constructor and public bases, and its documented members.

    The parameters of dataclasses and named tuples are also their attributes.

    :raises AttributeError: if a documented member does not exist.
    """
    bases = ", ".join(dict.fromkeys(_bases(cls, public)))
    yield f"class {place}{_constructor(cls)}{' of ' if bases else ''}{bases}"
    for name in documented_members:
        if name not in members(cls):
            raise AttributeError(f"{place} has no member {name!r}")
        yield _member(f"{place}.{name}", inspect.getattr_static(cls, name, None))


def members(cls: type) -> set[str]:
    """Return the names of the members, and of the attributes that `__init__` sets."""
    names = {name for owner in cls.__mro__ for name in {*vars(owner), *_instance_attributes(owner)}}
    return {name for name in names if not name.startswith("_")}


def fields(cls: Any) -> set[str]:
    """Return the attributes that are parameters of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(cls):
        return {each.name for each in dataclasses.fields(cls)}
    return set(getattr(cls, "_fields", ()))


def _bases(cls: type, public: Mapping[type, str]) -> Iterator[str]:
    """Yield the nearest bases that are public or exceptions of Python."""
    for base in cls.__bases__:
        if base in public:
            yield public[base]
        elif is_ours(base):
            yield from _bases(base, public)
        elif issubclass(base, BaseException):
            yield base.__name__


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "wbengine"


def _member(place: str, value: object) -> str:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if inspect.isfunction(value):
        return f"method {place}{_signature(value)}"
    return f"attribute {place}"


def _instance_attributes(cls: type) -> set[str]:
    """Return annotated names of the class and attributes that `__init__` sets."""
    names = set(vars(cls).get("__annotations__", ()))
    node: Any = tree(cls.__module__) if is_ours(cls) else ast.Module([], [])
    for part in cls.__qualname__.split("."):
        bodies = [*getattr(node, "body", ())]
        node = next((n for n in bodies if isinstance(n, ast.ClassDef) and n.name == part), None)
    for function in getattr(node, "body", ()):
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            names.update(
                target.attr
                for target in ast.walk(function)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            )
    return names


def _constructor(cls: type) -> str:
    """Return the signature of the constructor that a class of this package defines."""
    if issubclass(cls, enum.Enum):
        return ""
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _signature(cls.__new__)
    for owner in cls.__mro__:
        if not is_ours(owner) or getattr(owner, "_is_protocol", False):
            continue
        for name in ("__init__", "__new__"):
            if inspect.isfunction(constructor := _unwrapped(vars(owner).get(name))):
                return _signature(constructor)
    return ""


def _unwrapped(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod) else value


def _signature(function: Any) -> str:
    """Return the parameters without annotations; other defaults than plain values are `...`."""
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=each.empty, default=_default(each.default))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls", "_cls")
    ]
    text = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return str(text).replace("=Ellipsis", "=...")


def _default(value: Any) -> Any:
    plain = value is None or value is inspect.Parameter.empty or type(value) in (bool, int, float)
    if plain or type(value) in (str, bytes):
        return value
    is_plain_tuple = type(value) is tuple and all(type(each) in (str, int) for each in value)
    return value if is_plain_tuple else ...


# The command line and configuration.


def _commands() -> Iterator[str]:
    from wbengine._cli import app
    from wbengine._cli.settings_schema import SETTINGS

    settings = {each for setting in SETTINGS.values() for each in setting.spellings}
    settings |= {part for each in settings for part in each.split("/")}
    yield from _command("wbengine", app.root, click.Context(app.root), settings)


def _command(
    name: str, command: click.Command, context: click.Context, settings: set[str]
) -> Iterator[str]:
    yield f"command {name}"
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield f"argument {name} {parameter.human_readable_name}"
        elif not getattr(parameter, "hidden", False):
            spellings = {*parameter.opts, *parameter.secondary_opts}
            yield from (f"option {name} {each}" for each in spellings - settings)
    if not isinstance(command, click.Group):
        return
    for child in command.list_commands(context):
        part = command.get_command(context, child)
        if part is not None and not part.hidden:
            yield from _command(f"{name} {child}", part, click.Context(part), settings)


def _configuration() -> Iterator[str]:
    from wbengine._cli import settings_schema
    from wbengine.engines import _option_table
    from wbengine.transports import _kinds

    for name, setting in settings_schema.SETTINGS.items():
        yield f"setting {name}"
        yield from (f"option * {each}" for text in setting.spellings for each in text.split("/"))
    variables = settings_schema.VARIABLES
    yield from (f"variable {each}" for each in {*variables.values(), *_variables()})
    yield from (f"variable {variables[each]}_FILE" for each in settings_schema.SECRETS)
    for engines, table in _ENGINE_OPTIONS.items():
        yield from (f"engine-option {engines}: {each}" for each in getattr(_option_table, table))
    for kind in _points()[_kinds.GROUP]:
        for field in dataclasses.fields(_kinds.find_kind(kind).options):
            yield f"transport-option {kind} {field.name}"


def _variables() -> set[str]:
    """Return the environment variables that the code names and the documentation mentions."""
    documented = {name for line in documentation() for name in _VARIABLE.findall(line)}
    named = {
        node.value
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return documented & named


# Entry points, metrics, messages and pages.


def _points() -> dict[str, list[str]]:
    from wbengine._configuration import plugins

    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read(imports.ROOT / "setup.cfg")
    groups: dict[str, list[str]] = {group: [] for group in plugins.GROUPS}
    for group, text in parser["options.entry_points"].items():
        lines = filter(None, text.splitlines())
        groups[group] = [line.partition("=")[0].strip() for line in lines]
    return groups


def _entry_points() -> Iterator[str]:
    for group, names in _points().items():
        yield f"entry-point-group {group}"
        yield from (f"entry-point {group} {name}" for name in names)


def _metrics() -> Iterator[str]:
    from wbengine.telemetry import _metric_definitions

    for name, metric in {**_metric_definitions.METRICS, **_metric_definitions.MESSAGING}.items():
        yield f"metric {name} {metric.kind} {{{', '.join(metric.labels)}}}"


def _messages() -> Iterator[str]:
    from wbengine._text import data_formats

    for form in data_formats.ALL:
        yield f"format {form.name} writes {form.written}, reads {', '.join(map(str, form.read))}"
    headers = vars(importlib.import_module(f"{_WIRE}._messages.headers"))
    for name, value in headers.items():
        if name.isupper() and name != "VERSION" and isinstance(value, str):
            yield f"header {value}"
    schemas = importlib.import_module(f"{_WIRE}._message_schemas")
    for name in _SCHEMAS:
        yield from (f"field {name} {path}" for path in _fields(getattr(schemas, name)))


def _fields(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the properties of a JSON Schema."""
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from _fields(each, path)
    elif isinstance(schema, Mapping):
        for name, inner in schema.get("properties", {}).items():
            yield f"{path}{name}"
            yield from _fields(inner, f"{path}{name}.")
        for key in ("items", "prefixItems", "oneOf", "anyOf", "allOf", "additionalProperties"):
            yield from _fields(schema.get(key), path)


def _endpoints() -> Iterator[str]:
    """Yield the paths of the API and the probes. Pages for browsers are not public."""
    from wbengine.dashboard import _api, _health, _stream

    state: Any = mock.MagicMock()
    for part in (_api.Api(state), _health.Probes(state), _stream.Streams(state)):
        for route in part.routes():
            if route.path.startswith("/api/") or isinstance(part, _health.Probes):
                yield f"endpoint {route.path}"


def write() -> None:
    FILE.write_text("".join(f"{each}\n" for each in entries()), encoding="utf-8")


if __name__ == "__main__":
    write()
