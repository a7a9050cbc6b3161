"""A dashboard: flows, workers and queues in a browser, live.

    pip install 'wbengine[dashboard]'
    wbengine dashboard

It reads the store, the beats of the workers and the ledger, and holds nothing of its own: history
comes from the store, and who starts it again sees the same.

Names are loaded on first use; what is missing is told with the extra that brings it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wbengine import _lazily

if TYPE_CHECKING:
    from wbengine.dashboard.app import create_app
    from wbengine.dashboard.policy import check_host
    from wbengine.dashboard.runner import Runner
    from wbengine.dashboard.serving import HOST, PORT, Site, serve
    from wbengine.dashboard.visitors import Visitor, parse_users

__all__ = [
    "HOST", "PORT", "Runner", "Site", "Visitor", "check_host", "create_app", "parse_users", "serve",
]  # fmt: skip

_PLACES: Final = {
    "HOST": "wbengine.dashboard.serving",
    "PORT": "wbengine.dashboard.serving",
    "Runner": "wbengine.dashboard.runner",
    "Site": "wbengine.dashboard.serving",
    "Visitor": "wbengine.dashboard.visitors",
    "check_host": "wbengine.dashboard.policy",
    "create_app": "wbengine.dashboard.app",
    "parse_users": "wbengine.dashboard.visitors",
    "serve": "wbengine.dashboard.serving",
}


_found, __dir__ = _lazily.names(__name__, _PLACES)


def __getattr__(name: str) -> Any:
    try:
        return _found(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wbengine"):
            raise
        raise ImportError(
            f"the dashboard takes {error.name}: pip install 'wbengine[dashboard]'"
        ) from error
