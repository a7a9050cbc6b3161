"""URLs of servers that may contain a user and a password."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

__all__ = ["PASSWORD_HINT", "split"]

PASSWORD_HINT: Final = "write / ? # ; [ ] in a password as %2F %3F %23 %3B %5B %5D"


def split(what: str, url: str) -> SplitResult:
    """Split a URL. If a password contains '/', '?' or '#', its start would be read as the port.

    :param what: the URL in the error message, which contains no part of it.
    :raises ValueError: if the URL is malformed.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # It is checked at access.
    except ValueError:
        parts = SplitResult("", "", "@", "", "")
    rest = parts.path + parts.query.partition("=")[0] + parts.fragment
    if "@" in rest and "@" not in parts.netloc:
        raise ValueError(
            f"The port of {what} must be a number from 0 to 65535; {PASSWORD_HINT}"
        ) from None
    return parts
