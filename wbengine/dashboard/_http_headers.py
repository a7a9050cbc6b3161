"""Security headers of responses, and checks of host names and origins."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

__all__ = [
    "LOOPBACK",
    "check_host",
    "content_policy",
    "headers",
    "is_from_browser",
    "is_host_allowed",
    "is_same_origin",
]

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

_HOST_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")

_STATIC_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'"
)


def content_policy(nonce: str) -> str:
    """Return a policy that allows scripts with this nonce, and own styles and images."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def headers(nonce: str, *, static: bool = False) -> dict[str, str]:
    """Return the headers that are added to each response."""
    values = {
        "content-security-policy": _STATIC_POLICY if static else content_policy(nonce),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "same-origin",  # `no-referrer` would remove Origin from our forms
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    if not static:  # The next user of this computer must not see pages in the cache.
        values["cache-control"] = "no-store"
    return values


def check_host(name: str) -> str:
    """Return a host name or address in the form that `is_host_allowed` compares.

    :raises ValueError: if it is not a name, for example because of a scheme, port, path or
        wildcard.
    """
    normalized = name.strip("[]").lower().removesuffix(".")
    try:
        return str(ipaddress.ip_address(normalized))
    except ValueError:
        if len(normalized) <= 253 and _HOST_NAME.fullmatch(normalized):
            return normalized
    bare_name = re.sub(r"^[a-z]+://|[:/?#].*$", "", normalized)
    hint = f" (did you mean {bare_name}?)" if _HOST_NAME.fullmatch(bare_name) else ""
    raise ValueError(f"must be a host name such as flows.example.com, got {name!r:.100}{hint}")


def is_host_allowed(headers: Headers, hosts: Collection[str] | None) -> bool:
    """Return whether the Host header is one of these names (None: any).

    This prevents DNS rebinding: a foreign page can let its own name resolve to this host, and the
    browser then treats the dashboard as part of that site. Only the Host header shows the
    difference.
    """
    if hosts is None:
        return True
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return name.removesuffix(".") in hosts


def is_from_browser(headers: Headers) -> bool:
    """Return whether a browser sent a POST request. Browsers name the origin of each."""
    return "origin" in headers or "sec-fetch-site" in headers


def is_same_origin(headers: Headers) -> bool:
    """Return whether a page of this dashboard sent the form.

    Browsers send at least one of two headers; a request without both is refused.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return site is not None
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        return False
