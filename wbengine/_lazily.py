"""Public names of a package that are imported when somebody first asks for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["names"]


def names(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are in other modules.

    :param places: each name, and the module that it is in.
    """

    def found(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(place), name)

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return found, known
