"""Live web dashboard of flows, workers and queues.

    wbengine dashboard

The dashboard reads the store, the heartbeats of the workers and the ledger. It stores no data, so a
restart loses nothing.

Names are imported on first use. If a dependency is missing, the error names the extra that installs
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wbengine import _installing, _lazily

if TYPE_CHECKING:
    from wbengine.dashboard.asgi import create_app
    from wbengine.dashboard.policy import check_host
    from wbengine.dashboard.runner import Runner
    from wbengine.dashboard.site import HOST, PORT, Site, serve
    from wbengine.dashboard.visitors import Visitor, parse_users

__all__ = [
    "HOST", "PORT", "Runner", "Site", "Visitor", "check_host", "create_app", "parse_users", "serve",
]  # fmt: skip

_found, __dir__ = _lazily.lazy_attributes(
    __name__,
    {
        ".asgi": ("create_app",),
        ".policy": ("check_host",),
        ".runner": ("Runner",),
        ".site": ("HOST", "PORT", "Site", "serve"),
        ".visitors": ("Visitor", "parse_users"),
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _found(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wbengine"):
            raise
        raise ImportError(
            _installing.needs("the dashboard", str(error.name), "dashboard")
        ) from error
