"""Paths of pages, relative to the path at which the dashboard is mounted."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from wbengine.dashboard import _http_headers

__all__ = [
    "SIGN_IN", "SIGN_IN_CALLBACK", "Prefixed", "check_prefix", "href", "is_api", "is_about_flows",
    "is_stream", "path_of", "shows_queues", "wants_json",
]  # fmt: skip

#: Paths of the sign-in with OpenID Connect.
SIGN_IN: Final = "/login/oidc"
SIGN_IN_CALLBACK: Final = f"{SIGN_IN}/callback"

_API: Final = re.compile(r"/(api/|livez$|readyz$)")
_STREAM: Final = re.compile(r"/stream/|/(api/v1/)?flows/[^/]+/(events/)?stream$")
#: Paths whose responses wait for the end of a flow if there is a parameter `wait`.
_END_OF_FLOW: Final = re.compile(r"/api/v1/flows/[^/]+(/result)?$")
#: Paths that show or change only flows, through the store of the visitor, or end the session.
_ABOUT_FLOWS: Final = re.compile(
    r"/$|/logout$|/flows/|/stream/flows$|/api$|/api/v1/openapi\.json$|/api/v1/flows(/|$)"
)
#: Paths that show queues of flows.
_QUEUES: Final = re.compile(r"/jobs|/api/v1/jobs(/[^/]+/keys)?")


def path_of(request: Request) -> str:
    """Return the path within the dashboard. It begins with a slash."""
    root, path = request.scope.get("root_path", ""), str(request.scope["path"])
    if root and path.startswith(f"{root}/"):
        return path[len(root) :]
    return path or "/"


def href(request: Request, path: str, **query: object) -> str:
    """Return the URL of a page for browsers, without parameters that are None or empty."""
    root = str(request.scope.get("root_path", "")).rstrip("/")
    parameters = urlencode({name: value for name, value in query.items() if value}, doseq=True)
    return quote(root + path) + (f"?{parameters}" if parameters else "")


def is_api(request: Request) -> bool:
    return path_of(request).startswith("/api/")


def is_about_flows(request: Request) -> bool:
    """Return whether visitors who have access only to some flows may use the path."""
    return _ABOUT_FLOWS.match(path_of(request)) is not None


def shows_queues(request: Request) -> bool:
    """Return whether the response contains only queues of flows to which the visitor has access."""
    return request.method == "GET" and _QUEUES.fullmatch(path_of(request)) is not None


def wants_json(request: Request) -> bool:
    """Return whether the responses of the path are JSON: those of the API and of the probes."""
    return _API.match(path_of(request)) is not None


def is_stream(request: Request) -> bool:
    """Return whether the response is an event stream, or waits for the end of a flow."""
    path = path_of(request)
    is_long_poll = "wait" in request.query_params and _END_OF_FLOW.match(path) is not None
    return is_long_poll or _STREAM.match(path) is not None


def check_prefix(value: str) -> str:
    """Return the prefix of all paths without a slash at its end; empty if there is none.

    :raises ValueError: if it is not a path.
    """
    prefix = value.rstrip("/")
    if prefix and (
        not prefix.startswith("/") or "//" in prefix or any(c in prefix for c in "{}?# ")
    ):
        raise ValueError(f"url_prefix must be a path such as '/flows', got {value!r}")
    return prefix


class Prefixed:
    """An ASGI application below a path prefix that no proxy removes.

    If the application is already mounted at this path (by another application, or by the
    `root_path` of a server), the path is not repeated.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix
        self._mounted = Starlette(
            routes=[Mount(prefix, app)], exception_handlers={404: self._not_found}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_mounted = str(scope.get("root_path", "")).endswith(self._prefix)
        inside = is_mounted or scope["type"] == "lifespan"
        await (self._app if inside else self._mounted)(scope, receive, send)

    def _not_found(self, request: Request, error: Exception) -> Response:
        """Explain the prefix to the operator of a proxy that removes it."""
        text = (
            f"Not found: the dashboard is at {self._prefix}/ (its url_prefix). A proxy must pass"
            f" this"
            " prefix on.\n"
        )
        return PlainTextResponse(text, 404, _http_headers.headers("", static=True))
