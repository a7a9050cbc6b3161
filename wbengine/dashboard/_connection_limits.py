"""Limits of the connections of the dashboard's server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.types import Scope

from wbengine._logs.repeated_messages import RareWarnings

__all__ = [
    "MAX_STRANGERS",
    "MAX_WAITING",
    "REQUEST_SECONDS",
    "STALL_SECONDS",
    "OpenConnection",
    "Pool",
    "Pools",
    "of_scope",
    "on_loop_error",
    "put_into_state",
    "rare_warnings",
    "scaled",
]

LOG: Final = logging.getLogger(__name__)

#: Maximum number of connections that wait for a complete request.
MAX_WAITING: Final = 256
#: Maximum number of connections that send responses to clients without a session (strangers).
MAX_STRANGERS: Final = 64
#: Time for a client to send a complete request, and for a stranger to receive the response.
REQUEST_SECONDS: Final = 10.0
#: Time for a client to receive the next piece of a response.
STALL_SECONDS: Final = 30.0

#: Number of open descriptors for which the limits above are designed.
_DESCRIPTORS: Final = 1024
_KEY: Final = "wbengine.connection"
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RARE: Final = RareWarnings(LOG)


def scaled(maximum: int) -> int:
    """Return `maximum`, or less if the process may open fewer than 1,024 descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _DESCRIPTORS:
        return maximum
    return max(1, maximum * soft // _DESCRIPTORS)


class Pool:
    """Connections in the same state. A new one replaces the oldest one if there are too many.

    If new connections were refused instead, idle clients could lock out all others.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._members: dict[OpenConnection, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def add(self, connection: OpenConnection) -> None:
        self._members[connection] = None
        if len(self._members) > self._maximum:
            next(iter(self._members)).abort()

    def discard(self, connection: OpenConnection) -> None:
        self._members.pop(connection, None)


class Pools:
    """The connections of one server.

    Connections with responses to signed-in visitors are in no pool: `Quotas` limits them.
    """

    def __init__(self) -> None:
        self.waiting = Pool(scaled(MAX_WAITING))
        self.strangers = Pool(scaled(MAX_STRANGERS))


class OpenConnection:
    """One connection, used in the event loop. The protocol and the guard report its state."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._pool: Pool | None = None
        # Whether a request has arrived whose response is not in progress.
        self._is_requested = False
        # For each response in progress, whether the client has signed in.
        self._answers: list[bool] = []
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # The connection waits only if no request has arrived. The loop reads a request that was
        # sent with the connection before the second callback.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._enter_state)

    def requested(self) -> None:
        """Report that a request has arrived. `answering` follows."""
        self._is_requested = True
        self._enter_state()

    def closed(self) -> None:
        self._transport = None
        self._enter(None)
        self.writing_resumed()

    @contextlib.contextmanager
    def answering(self, *, signed_in: bool) -> Iterator[None]:
        """Register a response in progress during a `with` block. Blocks may overlap."""
        self._is_requested = False
        self._answers.append(signed_in)
        self._enter_state()
        try:
            yield
        finally:
            self._answers.remove(signed_in)
            self._enter_state()

    def _enter_state(self) -> None:
        if self._transport is None or any(self._answers):
            self._enter(None)
        elif self._answers:
            self._enter(self._pools.strangers)
        else:
            self._enter(None if self._is_requested else self._pools.waiting)

    def writing_paused(self) -> None:
        """Report that sent data waits for the client."""
        if self._stalled is None:
            loop = asyncio.get_running_loop()
            self._stalled = loop.call_later(STALL_SECONDS, self.abort)

    def writing_resumed(self) -> None:
        """Report that the client has received all sent data."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def abort(self) -> None:
        """Close the connection without sending the remaining data."""
        transport = self._transport
        self.closed()
        if transport is not None:
            transport.abort()

    def _enter(self, pool: Pool | None) -> None:
        if self._pool is not None:
            self._pool.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._pool = pool
        if self._pool is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(REQUEST_SECONDS, self.abort)
            self._pool.add(self)


def put_into_state(state: Mapping[str, Any], connection: OpenConnection) -> dict[str, Any]:
    """Return the `state` of a server with the connection added, for `of_scope`."""
    return {**state, _KEY: connection}


def of_scope(scope: Scope) -> OpenConnection | None:
    """Return the connection of a request, or None if another server serves the dashboard."""
    connection: OpenConnection | None = scope.get("state", {}).get(_KEY)
    return connection


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; those of `accept` at a limited rate."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        _RARE.warn("accept", "cannot accept connections: %s", error)
    else:
        loop.default_exception_handler(context)


@contextlib.contextmanager
def rare_warnings(name: str) -> Iterator[None]:
    """Rate-limit the warnings of a logger in a `with` block, because any client can cause them."""

    def warn_rarely(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        _RARE.warn(record.getMessage(), "%s", record.getMessage())
        return False

    log = logging.getLogger(name)
    log.addFilter(warn_rarely)
    try:
        yield
    finally:
        log.removeFilter(warn_rarely)
