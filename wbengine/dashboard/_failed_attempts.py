"""A limit of failed attempts to sign in, for each address."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from typing import Final

from wbengine._concurrency import clocks
from wbengine.dashboard._quotas import Exceeded

__all__ = ["FailedAttempts"]

MAX_FAILURES: Final = 60
WINDOW_SECONDS: Final = 60.0
#: Maximum numbers of addresses, and of tokens that were accepted.
_MAX_ADDRESSES: Final = 10_000
_MAX_ACCEPTED: Final = 1_000
#: Prefix of the addresses that one client of IPv6 may have.
_IPV6_PREFIX: Final = 64


class FailedAttempts:
    """Failed attempts within the latest window, by address. For the event loop only.

    A blocked address can use the tokens that were accepted before: programs with valid tokens
    continue behind a common address.
    """

    def __init__(self, clock: clocks.Clock = clocks.SYSTEM) -> None:
        self._clock = clock
        #: Start of the window and number of failures.
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._accepted: OrderedDict[bytes, None] = OrderedDict()

    def is_blocked(self, address: str, token: str) -> bool:
        """Return whether this token must not be checked now."""
        _, count = self._window(address)
        return count >= MAX_FAILURES and _digest(token) not in self._accepted

    def accept(self, token: str) -> None:
        """Report an accepted token."""
        digest = _digest(token)
        self._accepted[digest] = None
        self._accepted.move_to_end(digest)
        if len(self._accepted) > _MAX_ACCEPTED:
            self._accepted.popitem(last=False)

    def fail(self, address: str) -> None:
        """Report a token that was not accepted."""
        start, count = self._window(address)
        network = _network(address)
        self._failures[network] = start, count + 1
        self._failures.move_to_end(network)
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def refusal(self, address: str) -> Exceeded:
        """Return the error for a blocked address."""
        start, _ = self._window(address)
        seconds = max(1, round(start + WINDOW_SECONDS - self._clock.monotonic()))
        return Exceeded(
            429,
            f"This address sent too many invalid tokens. Try again in {seconds} seconds.",
            {"retry-after": str(seconds), "connection": "close"},
        )

    def _window(self, address: str) -> tuple[float, int]:
        now = self._clock.monotonic()
        start, count = self._failures.get(_network(address), (now, 0))
        return (start, count) if now - start < WINDOW_SECONDS else (now, 0)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
