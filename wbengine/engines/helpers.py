"""`engines.loading`, under the name that TaskFlow has."""

from __future__ import annotations

from wbengine.engines.loading import (
    ENGINE_DEFAULT,
    ENGINES_NAMESPACE,
    flow_from_detail,
    load,
    load_from_detail,
    load_from_factory,
    run,
    save_factory_details,
)

__all__ = [
    "ENGINES_NAMESPACE",
    "ENGINE_DEFAULT",
    "flow_from_detail",
    "load",
    "load_from_detail",
    "load_from_factory",
    "run",
    "save_factory_details",
]
