"""A dashboard: flows, workers and queues in a browser, live.

    pip install 'wbengine[dashboard]'
    wbengine dashboard

It reads the store, the beats of the workers and the ledger, and holds nothing of its own: history
comes from the store, and who starts it again sees the same.

Names are loaded on first use; what is missing is told with the extra that brings it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wbengine.dashboard.app import create_app
    from wbengine.dashboard.policy import check_host
    from wbengine.dashboard.runner import Runner
    from wbengine.dashboard.serving import HOST, PORT, Site, serve

__all__ = ["HOST", "PORT", "Runner", "Site", "check_host", "create_app", "serve"]

_HOMES = {
    "HOST": "serving",
    "PORT": "serving",
    "Runner": "runner",
    "Site": "serving",
    "check_host": "policy",
    "create_app": "app",
    "serve": "serving",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wbengine"):
            raise
        raise ImportError(
            f"the dashboard takes {error.name}: pip install 'wbengine[dashboard]'"
        ) from error
