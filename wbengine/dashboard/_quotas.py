"""Limits of requests that are answered at the same time."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from starlette.exceptions import HTTPException

from wbengine.dashboard import _connection_limits

__all__ = ["MAX_REQUESTS", "MAX_STREAMS", "Exceeded", "Quota", "Quotas"]

MAX_REQUESTS: Final = 128
MAX_REQUESTS_PER_CLIENT: Final = 8
MAX_STREAMS: Final = 200
MAX_STREAMS_PER_CLIENT: Final = 50

RETRY_SECONDS: Final = 2


class Exceeded(HTTPException):
    """A request that exceeds a quota."""


class Quota:
    """A limit of concurrent requests: in total, per client, and per address (half of the total).

    For the event loop only.
    """

    def __init__(self, subject: str, maximum: int, per_client: int) -> None:
        self._subject = subject
        self._maximum = _connection_limits.scaled(maximum)
        self._per_client = min(per_client, self._maximum)
        self._counts: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def acquire(self, client: str, address: str) -> Iterator[None]:
        """Count a request for the length of a `with` block.

        :raises Exceeded: if there are too many: 429 if this client or address sent them, else 503.
        """
        limits = {
            ("client", client): (429, self._per_client, " for one client"),
            ("address", address): (429, max(1, self._maximum // 2), " for one address"),
            ("all", ""): (503, self._maximum, ""),
        }
        for key, (status, maximum, scope) in limits.items():
            if self._counts[key] >= maximum:
                raise Exceeded(
                    status,
                    f"The dashboard serves at most {maximum} {self._subject} at a time{scope}."
                    f" Try again in {RETRY_SECONDS} seconds.",
                    # Requests that the client has already sent are not read.
                    {"retry-after": str(RETRY_SECONDS), "connection": "close"},
                )
        self._counts.update(limits.keys())
        try:
            yield
        finally:
            self._counts.subtract(limits.keys())
            for key in limits:
                if not self._counts[key]:
                    del self._counts[key]


class Quotas:
    def __init__(self) -> None:
        self.requests = Quota("requests", MAX_REQUESTS, MAX_REQUESTS_PER_CLIENT)
        self.streams = Quota("event streams", MAX_STREAMS, MAX_STREAMS_PER_CLIENT)
