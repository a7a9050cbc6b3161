"""Connections of Django, closed around the code of flows as Django does around requests."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator

from asgiref import sync
from django import db

from wbengine import running

__all__ = ["close_around_calls"]

# Whether this thread or context is in a scope. A task may run a flow, whose tasks use its
# connections.
_local = threading.local()
_is_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("is_inside", default=False)


def close_around_calls() -> None:
    """Close unusable and old connections around tasks, retry controllers and factories.

    This applies to all flows that this process runs from now on.
    """
    running.scope, running.async_scope = _scope, _async_scope


@contextlib.contextmanager
def _scope() -> Iterator[None]:
    if getattr(_local, "is_inside", False):
        yield
        return
    _local.is_inside = True
    db.reset_queries()
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()
        _local.is_inside = False


@contextlib.asynccontextmanager
async def _async_scope() -> AsyncIterator[None]:
    """Give the call a thread of its own for its queries, which begins without connections."""
    if _is_inside.get():
        yield
        return
    token = _is_inside.set(True)
    async with sync.ThreadSensitiveContext():
        try:
            yield
        finally:
            await sync.sync_to_async(_close_all_connections)()
            _is_inside.reset(token)


def _close_old_connections() -> None:
    for connection in db.connections.all(initialized_only=True):
        # A task may run a flow in its own transaction, which needs the connection.
        if not connection.in_atomic_block:
            # Django forgets a connection that cannot be closed.
            with contextlib.suppress(db.Error):
                connection.close_if_unusable_or_obsolete()


def _close_all_connections() -> None:
    with contextlib.suppress(db.Error):
        db.connections.close_all()
