"""Engines: what runs flows.

The public names are found on first use: a worker process imports modules from below this package,
and must not load storage and core with them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wbengine.engines.loading import (
        arun,
        flow_from_detail,
        load,
        load_from_detail,
        load_from_factory,
        run,
        save_factory_details,
    )

__all__ = [
    "load",
    "run",
    "arun",
    "flow_from_detail",
    "load_from_detail",
    "load_from_factory",
    "save_factory_details",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("wbengine.engines.loading"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
