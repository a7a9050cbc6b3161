"""Flow factories: functions known by name, so that a stored flow can be created again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine import exceptions, running
from wbengine import flow as flow_module
from wbengine import task as task_module
from wbengine._introspection import annotated, object_names
from wbengine.engines import _allowed
from wbengine.types import codec

__all__ = [
    "FLOW_OF",
    "Factory",
    "flow_of",
    "is_flow",
    "make",
    "name_of",
    "note",
    "note_used",
    "package_of",
    "path_of",
    "read_arguments",
    "remake",
]

#: The name of `flow_of` in records. It is never imported, so it stays the same when modules move.
FLOW_OF: Final = "wbengine.engines.factories.flow_of"

Factory = Callable[..., Any] | str


def is_flow(value: Any) -> bool:
    """Return whether an engine can load `value`: a flow or a single task."""
    return isinstance(value, flow_module.Flow | task_module.Task)


def is_workflow(value: Any) -> bool:
    """Return whether `value` is a workflow: the class that `task.workflow` returns."""
    return (
        isinstance(value, type)
        and issubclass(value, task_module.Workflow)
        and value is not task_module.Workflow
    )


def name_of(factory: Factory) -> str:
    """Return the dotted name of a factory.

    :raises TypeError: if it is neither a function nor a name.
    :raises ValueError: if it cannot be imported by name.
    """
    if not isinstance(factory, str) and not callable(factory):
        raise TypeError(f"A flow factory must be a function or its dotted name, got {factory!r}")
    if factory in (FLOW_OF, flow_of):
        return FLOW_OF
    name = factory if isinstance(factory, str) else object_names.dotted(factory)
    object_names.check_length("The name of a flow factory", name)
    try:
        imported = object_names.load(name)
    except Exception as error:
        raise ValueError(f"Flow factory {name!r} cannot be imported by name: {error}") from error
    if not isinstance(factory, str) and imported is not factory:
        raise ValueError(
            f"Flow factory {factory!r} must be importable by its name, but {name!r} is another"
            " object"
        )
    annotated.note(imported)
    return name


def importable_name_of(factory: Factory) -> str:
    """Return the dotted name of a factory that other processes can import.

    :raises TypeError: if it is neither a function nor a name.
    :raises ValueError: if it cannot be imported by name, or is in the main program.
    """
    name = name_of(factory)
    if _allowed.is_in_main(name):
        raise ValueError(
            f"Flow factory {name!r} is in the main program, which other processes cannot"
            " import: move it into a module"
        )
    return name


def read_arguments(
    name: str, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return arguments for a factory that this program names, with those of `JsonInputs` converted.

    :raises TypeError: if they are not a list or not a dict, or do not fit an annotation.
    :raises ValueError: if JSON does not fit an annotation.
    """
    _check(args, kwargs)
    args, kwargs = tuple(args or ()), kwargs or {}
    if name == FLOW_OF or not (args or kwargs):
        return args, kwargs
    read = object_names.load("wbengine.engines._input_receivers:read_arguments")
    return args, read(name, object_names.load(name), args, kwargs)


def make(name: str, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None) -> Any:
    """Return the flow (or task) of a factory that this program names.

    :raises TypeError: if the arguments are not a list or not a dict.
    :raises NotAFlow: if the factory returns neither a flow nor a task.
    """
    _check(args, kwargs)
    factory = flow_of if name == FLOW_OF else object_names.load(name)
    flow = _check_flow(f"Flow factory {name!r}", factory(*(args or ()), **(kwargs or {})))
    note_used(name, args)
    return flow


def note_used(name: str, args: Iterable[Any] | None) -> None:
    """Allow a factory in this process, because this program named it itself."""
    path = _flow_of_path(name, args)
    _allowed.note_used(name if path is None else path)


def remake(
    name: str,
    args: Iterable[Any] | None,
    kwargs: Mapping[str, Any] | None,
    flows: _allowed.Flows = None,
) -> Any:
    """Return the flow (or task) of a factory that is named in a record.

    :param flows: the allowed factories (see `allowed.AllowedFlows`).
    :raises NotTrusted: if the factory is not allowed.
    :raises ImportError: if it cannot be found, or its module raises an exception.
    :raises Exception: as `make`.
    """
    _check(args, kwargs)
    rules = _allowed.of_process(flows)
    path = _flow_of_path(name, args)
    if path is not None:
        return running.in_scope(_flow_at, path, rules.load)
    factory = rules.load(name)
    flow = running.in_scope(factory, *(args or ()), **(kwargs or {}))
    return _check_flow(f"Flow factory {name!r}", flow)


def load(name: str, args: Iterable[Any] | None, flows: _allowed.Flows = None) -> None:
    """Import the module of a factory that is named in a record.

    :raises NotTrusted: if the factory is not allowed.
    :raises ImportError: if it cannot be found, or its module raises an exception.
    """
    annotated.note(_allowed.of_process(flows).load(_flow_of_path(name, args) or name))


def _flow_of_path(name: str, args: Iterable[Any] | None) -> str | None:
    if name != FLOW_OF or args is None:
        return None
    arguments = list(args)
    return arguments[0] if len(arguments) == 1 and isinstance(arguments[0], str) else None


def package_of(factory_note: Any) -> str:
    """Return the top-level package of the factory in a `note`; "" if the note is not valid."""
    return (path_of(factory_note) or "").partition(":")[0].partition(".")[0]


def path_of(factory_note: Any) -> str | None:
    """Return the name of the factory in a `note`, or None if the note is not valid."""
    try:
        name, args = factory_note["name"], factory_note["args"]
        path = _flow_of_path(name, args) or name
    except (LookupError, TypeError, AttributeError):
        return None
    return path if isinstance(path, str) else None


def _check(args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    if args is not None and (isinstance(args, str) or not isinstance(args, Iterable)):
        raise TypeError(f"factory_args must be a list or tuple, got {args!r}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"factory_kwargs must be a dict, got {kwargs!r}")


def note(
    name: str, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None, *, encodes: bool
) -> dict[str, Any]:
    """Return the note about a flow's factory for its record, to be read by `remake`.

    :raises NotEncodable: if the backend `encodes` values and cannot encode an argument.
    """
    factory_note = {"name": name, "args": list(args or ()), "kwargs": dict(kwargs or {})}
    if encodes:
        codec.pack(factory_note["args"], "factory_args")
        codec.pack(factory_note["kwargs"], "factory_kwargs")
    return factory_note


def flow_of(path: str) -> Any:
    """Return the flow (or task) at `'package.module:name'`: a flow, or a function that returns one.

    Exceptions of the module or the function pass through.

    :raises ValueError: if `path` does not have this form.
    :raises ImportError: if the module does not exist or has no such name.
    :raises NotAFlow: if the result is neither a flow nor a task.
    """
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"The flow must be MODULE:FACTORY, got {path!r}{_suggest_flows(module)}")
    return _flow_at(path, object_names.load)


def _flow_at(path: str, load: Callable[[str], Any]) -> Any:
    try:
        loaded = load(path)
    except ModuleNotFoundError as error:
        module = path.partition(":")[0]
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ImportError(
            f"{object_names.no_module(error.name)} (here, or on $PYTHONPATH)"
        ) from error
    if is_flow(loaded):
        return loaded
    if not callable(loaded):
        raise exceptions.NotAFlow(
            f"{path!r} must be a flow or a function that returns one, got {loaded!r:.80}"
        )
    return _check_flow(f"{path}()", loaded())


def _check_flow(source: str, value: Any) -> Any:
    if not is_flow(value):
        raise exceptions.NotAFlow(f"{source} must return a flow or a task, got {value!r:.80}")
    return value


def _suggest_flows(module: str) -> str:
    try:
        names = vars(importlib.import_module(module)).items()
    except Exception:
        return ""
    paths = [f"{module}:{name}" for name, value in names if is_flow(value) or is_workflow(value)]
    return f"; this module has {', '.join(paths[:5])}" if paths else ""
