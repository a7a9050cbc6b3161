"""Which functions may make the flows of records: whoever may write to a store names them."""

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

from wbengine import _names, exceptions
from wbengine import flow as flow_module
from wbengine import task as task_module

__all__ = ["VARIABLE", "AllowedFlows", "Flows", "note_named", "of_process", "set_for_process"]

#: What says so where no program does: names, with commas between them.
VARIABLE: Final = "WBENGINE_FLOWS"

_OURS: Final = __name__.partition(".")[0]
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_HOW: Final = f"--flows, ${VARIABLE} or flows="

#: What this very program made flows by, other than from records.
_named: Final[set[str]] = set()


class AllowedFlows:
    """What may make flows: `'module'`, which stands for all that is defined in it and in modules
    below it, or `'module:name'`.

    Without any names, that is what this program itself made flows by, and all modules which neither
    are Python's or wbengine's nor were installed as a package.  Python's standard library and
    builtins make no flows, whatever is allowed.

    :raises ValueError: a name can be none, or is one of the standard library.
    """

    def __init__(self, names: str | Iterable[str] | None = None) -> None:
        self.names: Final = tuple(_names.words("flows", names))
        for name in self.names:
            if not all(part.isidentifier() for part in _dotted(name).split(".")):
                raise ValueError(f"flows: {name!r} is not of the form MODULE or MODULE:NAME")
            if (why := _never(name)) is not None:
                raise ValueError(f"flows: {name!r} {why}")

    def load(self, name: str) -> Any:
        """What has this name; nothing is imported that is not allowed.

        :raises NotTrusted: it is not allowed, or is neither a flow nor a function or a class that
            makes one.
        :raises ImportError: it cannot be found.
        """
        if (why := self._refusal(name)) is not None:
            raise exceptions.NotTrusted(f"Flow factory {name!r:.200} is not called: it {why}")
        found = _names.load(name)
        if isinstance(found, flow_module.Flow | task_module.Task):
            return found
        made_by = _function(found)
        if made_by is None:
            raise exceptions.NotTrusted(
                f"Flow factory {name!r:.200} is not called: it is neither a function nor a class of"
                " flows"
            )
        home = f"{made_by.__module__}.{made_by.__qualname__}"
        why = _never(home) if self._is_meant(name) else self._refusal(home)
        if why is not None:
            raise exceptions.NotTrusted(
                f"Flow factory {name!r:.200} is not called: it is {home}, which {why}"
            )
        return found

    def _is_meant(self, name: str) -> bool:
        """Whether this very name was given, here or by this program."""
        name = _dotted(name)
        return name in map(_dotted, self.names) if self.names else name in _named

    def _refusal(self, name: str) -> str | None:
        """Why what has this name is not allowed; None: it is.  Imports nothing."""
        if (why := _never(name)) is not None:
            return why
        dotted = _dotted(name)
        if self.names:
            known = [_dotted(each) for each in self.names]
            if any(dotted == each or dotted.startswith(f"{each}.") for each in known):
                return None
            near = _names.hint(dotted.rpartition(".")[0], known) or _names.hint(dotted, known)
            return f"is not among the flows that are allowed{near}: name its module in {_HOW}"
        if dotted in _named or not _is_installed(_top(name)):
            return None
        return f"is of an installed package, and no flows are allowed: name its module in {_HOW}"


#: What may make flows: these names, or (None) what holds for the process.
Flows = str | Iterable[str] | AllowedFlows | None

_of_process: AllowedFlows | None = None


def of_process(flows: Flows = None) -> AllowedFlows:
    """What is allowed: `flows`, or without them what holds for the process."""
    if isinstance(flows, AllowedFlows):
        return flows
    if flows is not None:
        return AllowedFlows(flows)
    if _of_process is not None:
        return _of_process
    told = os.environ.get(VARIABLE, "")
    return AllowedFlows(part.strip() for part in told.split(",") if part.strip())


def set_for_process(flows: Iterable[str] | None) -> None:
    """Let these names be allowed where a program says nothing else; None: what `VARIABLE` says.

    :raises ValueError: one can be none.
    """
    global _of_process
    _of_process = None if flows is None else AllowedFlows(flows)


def note_named(name: str) -> None:
    """This program made a flow by that name, which no record told it."""
    _named.add(_dotted(name))


def _dotted(name: str) -> str:
    return name.replace(":", ".", 1)


def _top(name: str) -> str:
    """The package, or module, on top of it; of the program that runs, under its own name."""
    top = name.partition(":")[0].partition(".")[0]
    if top == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return top if spec is None else str(spec.name).partition(".")[0]
    return top


def _never(name: str) -> str | None:
    """Why what has this name makes no flows, whatever is allowed; None: it may."""
    top = _top(name)
    if top == _OURS:
        return "is wbengine's own"
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or _is_python(top):
        return "is of Python's standard library, which makes no flows"
    return None


@functools.lru_cache(maxsize=1024)
def _is_python(top: str) -> bool:
    library = Path(sysconfig.get_path("stdlib"))
    return any(
        place.is_relative_to(library) and not _INSTALLED & set(place.parts)
        for place in _places(top)
    )


@functools.lru_cache(maxsize=1024)
def _is_installed(top: str) -> bool:
    return any(_INSTALLED & set(place.parts) for place in _places(top))


def _places(top: str) -> list[Path]:
    """Where a module on top is; nothing is imported for it."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # one that was made by hand has none
        return []
    if spec is None:
        return []
    origins = [spec.origin] if spec.has_location and spec.origin else []
    return [Path(each) for each in (*origins, *(spec.submodule_search_locations or ()))]


def _function(found: Any) -> Any:
    """The function or the class of flows that is behind `found`; None: there is none."""
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(found)
    if isinstance(found, types.MethodType) and isinstance(found.__self__, type):  # of its class
        found = found.__func__
    if isinstance(found, types.FunctionType):
        return found
    is_flow = isinstance(found, type) and issubclass(found, flow_module.Flow | task_module.Task)
    return found if is_flow else None
