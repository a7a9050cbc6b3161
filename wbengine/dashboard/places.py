"""Paths of pages, wherever the dashboard is mounted."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request

__all__ = ["href", "path_of", "wants_json"]

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
    told = urlencode({name: value for name, value in query.items() if value}, doseq=True)
    return quote(root + path) + (f"?{told}" if told else "")


def wants_json(request: Request) -> bool:
    """Whether a program asks, and not a browser."""
    return _API.match(path_of(request)) is not None
