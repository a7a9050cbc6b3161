"""Clients of the HTTP API, for programs that cannot reach the store of flows.

They need the extra `client` (`pip install 'wbengine[client]'`) and a dashboard that allows actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine.client._async import AsyncClient, AsyncRemoteFlow
    from wbengine.client._blocking import Client, RemoteFlow
    from wbengine.client._calls import AccessDenied, FlowFailed

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "AsyncRemoteFlow",
    "Client",
    "FlowFailed",
    "RemoteFlow",
]

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        "._async": ("AsyncClient", "AsyncRemoteFlow"),
        "._blocking": ("Client", "RemoteFlow"),
        "._calls": ("AccessDenied", "FlowFailed"),
    },
)
