"""Names and modules of packages that are imported on first use."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["alias_modules", "lazy_attributes"]


def lazy_attributes(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are in other modules.

    :param modules: the names in each module. Modules are relative to the package (`.module`).
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get_attribute(name: str) -> Any:
        module_name = places.get(name)
        if module_name is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_name, package), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get_attribute, list_names


def alias_modules(package: str, home: str) -> None:
    """Let a package also contain the modules of another one: the same objects, not copies."""
    sys.meta_path.append(_Aliases(package, home))


class _Aliases(MetaPathFinder, Loader):
    def __init__(self, package: str, home: str) -> None:
        self._package = package
        self._home = home

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != self._package:
            return None
        spec = importlib.util.find_spec(f"{self._home}.{name}")
        # A package would contain copies of its modules.
        if spec is None or spec.submodule_search_locations is not None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        # The import returns the module that is registered now.
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = importlib.import_module(f"{self._home}.{name}")
