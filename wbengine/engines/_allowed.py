"""Allowed flow factories: records name factories, and everyone who can write to a store can too."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from wbengine import exceptions
from wbengine import flow as flow_module
from wbengine import task as task_module
from wbengine._introspection import object_names

__all__ = ["FLOWS_VARIABLE", "AllowedFlows", "Flows", "note_used", "of_process", "set_for_process"]

#: Environment variable with the allowed names, separated by commas, unless the program sets them.
FLOWS_VARIABLE: Final = "WBENGINE_FLOWS"

_OWN_PACKAGE: Final = __name__.partition(".")[0]
_INSTALL_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
_SETTINGS: Final = f"--flows, ${FLOWS_VARIABLE} or flows="

#: Names by which this program itself created flows, not from records.
_used_names: Final[set[str]] = set()


class AllowedFlows:
    """Allowed factories: `'module'` (with its submodules) or `'module:name'`.

    Without names, these are the factories that this program used itself, and all modules that are
    neither part of Python or wbengine nor installed as a package. The standard library and builtins
    are never allowed.

    :raises ValueError: if a name is malformed, does not exist, or is in the standard library.
    """

    def __init__(self, names: str | Iterable[str] | None = None) -> None:
        self.names: Final = tuple(object_names.as_tuple("flows", names))
        for name in self.names:
            if not all(part.isidentifier() for part in _dotted(name).split(".")):
                raise ValueError(f"flows must be MODULE or MODULE:NAME, got {name!r}")
            if (reason := _why_never_allowed(name)) is not None:
                raise ValueError(f"flows must not contain {name!r}: it {reason}")
            if (missing := object_names.missing(_dotted(name))) is not None:
                raise ValueError(
                    f"flows must be modules or functions that exist, got {name!r}: {missing}"
                )

    def load(self, name: str) -> Any:
        """Return the object of this name; modules that are not allowed are never imported.

        :raises NotTrusted: if it is not allowed, or is neither a flow nor a function or class that
            makes one.
        :raises ImportError: if it cannot be found, or its module raises an exception.
        """
        if is_in_main(name) and not hasattr(sys.modules["__main__"], _dotted(name).split(".")[1]):
            raise ImportError(
                f"Flow factory {name!r:.200} is in the main program of the process that created"
                " the flow, which other processes cannot import: move it into a module"
            )
        if (reason := self._why_not_allowed(name)) is not None:
            raise exceptions.NotTrusted(f"Flow factory {name!r:.200} is not allowed: it {reason}")
        try:
            loaded = object_names.load(name)
        except ImportError:
            raise
        except Exception as error:  # for example SyntaxError, or KeyError of a missing variable
            raise ImportError(
                f"Flow factory {name!r:.200} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if isinstance(loaded, flow_module.Flow | task_module.Task):
            return loaded
        made_by = _factory_behind(loaded)
        if made_by is None:
            raise exceptions.NotTrusted(
                f"Flow factory {name!r:.200} is not allowed: it must be a function or a"
                " class of flows"
            )
        home = f"{made_by.__module__}.{made_by.__qualname__}"
        reason = _why_never_allowed(home) if self._is_listed(name) else self._why_not_allowed(home)
        if reason is not None:
            raise exceptions.NotTrusted(
                f"Flow factory {name!r:.200} is not allowed: it is {home}, which {reason}"
            )
        return loaded

    def _is_listed(self, name: str) -> bool:
        name = _dotted(name)
        return name in map(_dotted, self.names) if self.names else name in _used_names

    def _why_not_allowed(self, name: str) -> str | None:
        """Return why this name is not allowed; None if it is. This imports nothing."""
        if (reason := _why_never_allowed(name)) is not None:
            return reason
        dotted = _dotted(name)
        if self.names:
            allowed_names = [_dotted(allowed_name) for allowed_name in self.names]
            if any(
                dotted == allowed_name or dotted.startswith(f"{allowed_name}.")
                for allowed_name in allowed_names
            ):
                return None
            hint = object_names.hint(dotted.rpartition(".")[0], allowed_names) or object_names.hint(
                dotted, allowed_names
            )
            return f"is not among the allowed flows{hint}: add its module to {_SETTINGS}"
        if dotted in _used_names or not _is_installed(_top_level_name(name)):
            return None
        return (
            "belongs to an installed package, and no flows are allowed: add its module to"
            f" {_SETTINGS}"
        )


Flows = str | Iterable[str] | AllowedFlows | None

_of_process: AllowedFlows | None = None


def of_process(flows: Flows = None) -> AllowedFlows:
    if isinstance(flows, AllowedFlows):
        return flows
    if flows is not None:
        return AllowedFlows(flows)
    if _of_process is not None:
        return _of_process
    setting = os.environ.get(FLOWS_VARIABLE, "")
    return AllowedFlows(part.strip() for part in setting.split(",") if part.strip())


def set_for_process(flows: Iterable[str] | None) -> None:
    """Set the default of this process; None: the value of `FLOWS_VARIABLE`.

    :raises ValueError: if a name is malformed, does not exist, or is never allowed.
    """
    global _of_process
    _of_process = None if flows is None else AllowedFlows(flows)


def note_used(name: str) -> None:
    """Record that this program itself created a flow by this name."""
    _used_names.add(_dotted(name))


def is_in_main(name: str) -> bool:
    """Return whether this name is in the main program of a process."""
    return _dotted(name).startswith("__main__.")


def _dotted(name: str) -> str:
    return name.replace(":", ".", 1)


def _top_level_name(name: str) -> str:
    """Return the top-level module of a name; for `__main__`, its importable name."""
    top = name.partition(":")[0].partition(".")[0]
    if top == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return top if spec is None else str(spec.name).partition(".")[0]
    return top


def _why_never_allowed(name: str) -> str | None:
    top = _top_level_name(name)
    if top == _OWN_PACKAGE:
        return "belongs to wbengine itself"
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or _is_python(top):
        return "belongs to Python's standard library, which contains no flows"
    return None


@functools.lru_cache(maxsize=1024)
def _is_python(top: str) -> bool:
    library = Path(sysconfig.get_path("stdlib"))
    return any(
        place.is_relative_to(library) and not _INSTALL_FOLDERS & set(place.parts)
        for place in _locations(top)
    )


@functools.lru_cache(maxsize=1024)
def _is_installed(top: str) -> bool:
    return any(_INSTALL_FOLDERS & set(place.parts) for place in _locations(top))


def _locations(top: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that a program created has none
        return []
    if spec is None:
        return []
    origins = [spec.origin] if spec.has_location and spec.origin else []
    return [Path(each) for each in (*origins, *(spec.submodule_search_locations or ()))]


def _factory_behind(value: Any) -> Any:
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value)
    if isinstance(value, types.MethodType) and isinstance(value.__self__, type):  # a class method
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return value
    is_flow = isinstance(value, type) and issubclass(value, flow_module.Flow | task_module.Task)
    return value if is_flow else None
