"""Paths of pages, wherever the dashboard is mounted."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from wbengine.dashboard import policy

__all__ = ["Prefixed", "check_prefix", "href", "path_of", "wants_json"]

_API: Final = re.compile(r"/(api/|livez$|readyz$)")


def path_of(request: Request) -> str:
    """The path inside of the dashboard, beginning with a slash."""
    root, path = request.scope.get("root_path", ""), str(request.scope["path"])
    if root and path.startswith(f"{root}/"):
        return path[len(root) :]
    return path or "/"


def href(request: Request, path: str, **query: object) -> str:
    """Where a page of ours is, from outside; parameters that are None or empty are left out."""
    root = str(request.scope.get("root_path", "")).rstrip("/")
    parameters = urlencode({name: value for name, value in query.items() if value}, doseq=True)
    return quote(root + path) + (f"?{parameters}" if parameters else "")


def wants_json(request: Request) -> bool:
    """Whether a program asks, and not a browser."""
    return _API.match(path_of(request)) is not None


def check_prefix(given: str) -> str:
    """The path before all pages, without a slash at its end; empty: there is none.

    :raises ValueError: it is no path.
    """
    prefix = given.rstrip("/")
    if prefix and (
        not prefix.startswith("/") or "//" in prefix or any(c in prefix for c in "{}?# ")
    ):
        raise ValueError(f"url_prefix={given!r} is no path such as '/flows'")
    return prefix


class Prefixed:
    """An ASGI application below a path that nothing in front takes away.

    Where it is mounted at this very path already (by another application, or by a server that was
    told its `root_path`), the path counts once.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix
        self._below = Starlette(
            routes=[Mount(prefix, app)], exception_handlers={404: self._elsewhere}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = str(scope.get("root_path", "")).endswith(self._prefix)
        inside = counted or scope["type"] == "lifespan"
        await (self._app if inside else self._below)(scope, receive, send)

    def _elsewhere(self, request: Request, error: Exception) -> Response:
        """A proxy that takes the path away is told so: nobody sees it from the pages."""
        text = (
            f"Nothing is here: the dashboard is below {self._prefix}/ (its url_prefix)."
            " A proxy in front of it must not take that away.\n"
        )
        return PlainTextResponse(text, 404, policy.headers("", static=True))
