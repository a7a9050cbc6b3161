"""What a browser may do with a page of ours, and where a request may come from."""

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
    "host_is_known",
    "is_of_our_pages",
]

#: The names under which a browser reaches this host itself.
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")

_STATIC: Final = "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'"


def content_policy(nonce: str) -> str:
    """Scripts with this nonce, styles and images of ours, and nothing else."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def headers(nonce: str, *, static: bool = False) -> dict[str, str]:
    """What is added to each answer."""
    found = {
        "content-security-policy": _STATIC if static else content_policy(nonce),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "same-origin",  # "no-referrer" would take the Origin from our forms
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    if not static:  # whoever comes after at this computer does not see it
        found["cache-control"] = "no-store"
    return found


def check_host(name: str) -> str:
    """A name of a host, or its address, as `host_is_known` compares it.

    :raises ValueError: it is none: it has a scheme, a port, a path or a wildcard, for example.
    """
    found = name.strip("[]").lower().removesuffix(".")
    try:
        return str(ipaddress.ip_address(found))
    except ValueError:
        if len(found) <= 253 and _NAME.fullmatch(found):
            return found
    inside = re.sub(r"^[a-z]+://|[:/?#].*$", "", found)
    hint = f" (did you mean {inside}?)" if _NAME.fullmatch(inside) else ""
    raise ValueError(f"{name!r:.100} is no name of a host, such as flows.example.com{hint}")


def host_is_known(headers: Headers, hosts: Collection[str] | None) -> bool:
    """Whether the browser asked for one of these names; None: any.

    A page of somebody else's can have its own name lead to this host; the browser then takes us
    for that page's site, and only the name tells.
    """
    if hosts is None:
        return True
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return name.removesuffix(".") in hosts


def is_of_our_pages(headers: Headers) -> bool:
    """Whether a form was sent by a page of ours, as far as the browser says so.

    Browsers do, with at least one of two headers; who says nothing is refused.
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
