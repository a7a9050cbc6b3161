"""Live web dashboard of flows, workers and queues.

    wbengine dashboard

The dashboard reads the store, the heartbeats of the workers and the ledger. It stores no data
except the latest use of access keys, so a restart loses nothing.

Names are imported on first use. If a dependency is missing, the error names the extra that installs
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wbengine._imports import installing, lazily

if TYPE_CHECKING:
    from wbengine.dashboard._asgi import create_app
    from wbengine.dashboard._http_headers import check_host
    from wbengine.dashboard._runner import Runner
    from wbengine.dashboard._site import HOST, PORT, Site, serve
    from wbengine.dashboard._visitors import Visitor, parse_users

__all__ = [
    "HOST", "PORT", "Runner", "Site", "Visitor", "check_host", "create_app", "parse_users", "serve",
]  # fmt: skip

_found, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._asgi": ("create_app",),
        "._http_headers": ("check_host",),
        "._runner": ("Runner",),
        "._site": ("HOST", "PORT", "Site", "serve"),
        "._visitors": ("Visitor", "parse_users"),
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _found(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("wbengine"):
            raise
        raise ImportError(
            installing.needs("the dashboard", str(error.name), "dashboard")
        ) from error
