"""What makes flows: functions that are known by name, so that a kept flow can be made again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine import _codec, _names, exceptions
from wbengine import flow as flow_module
from wbengine import task as task_module
from wbengine.engines import allowed

__all__ = [
    "FLOW_OF",
    "Factory",
    "flow_of",
    "is_flow",
    "make",
    "name_of",
    "note",
    "note_named",
    "remake",
]

#: Makes the flow behind 'module:name', which may be the flow itself.
FLOW_OF: Final = "wbengine.engines.factories.flow_of"

Factory = Callable[..., Any] | str


def is_flow(value: Any) -> bool:
    """Whether engines can load it: a flow, or a task alone."""
    return isinstance(value, flow_module.Flow | task_module.Task)


def name_of(factory: Factory) -> str:
    """The dotted name of a factory.

    :raises TypeError: it is neither a function nor a name.
    :raises ValueError: it cannot be imported by name.
    """
    if not isinstance(factory, str) and not callable(factory):
        raise TypeError(f"A flow factory is a function or its dotted name, not {factory!r}")
    name = factory if isinstance(factory, str) else _names.dotted(factory)
    try:
        found = _names.load(name)
    except Exception as error:
        raise ValueError(f"Flow factory {name!r} cannot be imported by name: {error}") from error
    if not isinstance(factory, str) and found is not factory:
        raise ValueError(f"Flow factory {factory!r} is not what importing {name!r} gives")
    return name


def make(name: str, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None) -> Any:
    """The flow (or task) that the factory of that name makes, which this program names.

    :raises TypeError: the arguments are no list, or no dict.
    :raises NotAFlow: it made neither.
    """
    _check(args, kwargs)
    made = _made(f"Flow factory {name!r}", _names.load(name)(*(args or ()), **(kwargs or {})))
    note_named(name, args)
    return made


def note_named(name: str, args: Iterable[Any] | None) -> None:
    """This program named what makes a flow: it may do so again."""
    path = _path(name, args)
    allowed.note_named(name if path is None else path)


def remake(
    name: str,
    args: Iterable[Any] | None,
    kwargs: Mapping[str, Any] | None,
    flows: allowed.Flows = None,
) -> Any:
    """The flow (or task) that the factory of that name makes, which a record names.

    :param flows: what is allowed (see `allowed.AllowedFlows`).
    :raises NotTrusted: it is not.
    :raises ImportError: it cannot be found.
    :raises Exception: what `make` raises.
    """
    _check(args, kwargs)
    rules = allowed.of_process(flows)
    path = _path(name, args)
    if path is not None:
        return _behind(path, rules.load)
    factory = rules.load(name)
    return _made(f"Flow factory {name!r}", factory(*(args or ()), **(kwargs or {})))


def _path(name: str, args: Iterable[Any] | None) -> str | None:
    """What `flow_of` is called with; None: it is another factory."""
    if name != FLOW_OF or args is None:
        return None
    found = list(args)
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


def _check(args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    if args is not None and (isinstance(args, str) or not isinstance(args, Iterable)):
        raise TypeError(f"factory_args must be a list or tuple, not {args!r}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"factory_kwargs must be a dict, not {kwargs!r}")


def note(
    name: str, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None, *, encodes: bool
) -> dict[str, Any]:
    """What records say of a flow's factory, for `make`.

    :raises NotEncodable: a backend that `encodes` cannot keep an argument.
    """
    noted = {"name": name, "args": list(args or ()), "kwargs": dict(kwargs or {})}
    if encodes:
        _codec.pack(noted["args"], "factory_args")
        _codec.pack(noted["kwargs"], "factory_kwargs")
    return noted


def flow_of(path: str) -> Any:
    """The flow (or task) behind `'package.module:name'`: a function that makes it, or itself.

    What is raised inside of the module or the function goes through as it is.

    :raises ValueError: `path` is not of that form.
    :raises ImportError: there is no such module, or it has no such name.
    :raises NotAFlow: that makes no flow.
    """
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"{path!r} is not of the form MODULE:FACTORY{_offer(module)}")
    return _behind(path, _names.load)


def _behind(path: str, load: Callable[[str], Any]) -> Any:
    try:
        found = load(path)
    except ModuleNotFoundError as error:
        module = path.partition(":")[0]
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ImportError(f"there is no module {error.name!r} (here, or on $PYTHONPATH)") from error
    if is_flow(found):
        return found
    if not callable(found):
        raise exceptions.NotAFlow(
            f"{path!r} is neither a flow nor a function that makes one, but {found!r:.80}"
        )
    return _made(f"{path}()", found())


def _made(what: str, made: Any) -> Any:
    if not is_flow(made):
        raise exceptions.NotAFlow(f"{what} made neither a flow nor a task, but {made!r:.80}")
    return made


def _offer(module: str) -> str:
    """Which flows the module has, if it is one."""
    try:
        names = vars(importlib.import_module(module)).items()
    except Exception:
        return ""
    found = [f"{module}:{name}" for name, value in names if is_flow(value)]
    return f"; there is {', '.join(found[:5])}" if found else ""
