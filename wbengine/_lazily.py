"""Public names of packages that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["lazy_attributes"]


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
