"""URLs of servers that may contain a user and a password."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

__all__ = ["PASSWORD_HINT", "split"]

PASSWORD_HINT: Final = "write / ? # ; [ ] in a password as %2F %3F %23 %3B %5B %5D"


def split(what: str, url: str) -> SplitResult:
    """Split a URL.

    If a password contains '/', '?' or '#', the host ends there: the user is read as the host, the
    start of the password as the port, and '@' is in a later part.

    :param what: the name of the URL in the error message, which must not contain a password.
    :raises ValueError: if the URL is malformed.
    """
    malformed = ValueError(f"The port of {what} must be a number from 0 to 65535; {PASSWORD_HINT}")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # It is checked at access.
    except ValueError:
        raise malformed from None
    # The value of an option may contain '@'.
    later_parts = parts.path + parts.query.partition("=")[0] + parts.fragment
    if "@" in later_parts and "@" not in parts.netloc:
        raise malformed
    return parts
