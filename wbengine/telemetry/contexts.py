"""Which span a call belongs to, so that what its body traces is found below it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from wbengine import running

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from wbengine import invocation

__all__ = ["Key", "enter", "leave"]

#: `(id, epoch)` of a request on a worker; `(uuid, attempt)` of an atom in an engine's process.
Key = tuple[str, int]

_CONTEXTS: Final[dict[Key, Context]] = {}


def enter(key: Key, context: Context) -> None:
    """From now on calls known by `key` run in `context`, in this process."""
    _CONTEXTS[key] = context
    running.around = _around


def leave(key: Key) -> None:
    """Undo `enter`; idempotent."""
    _CONTEXTS.pop(key, None)


@contextlib.contextmanager
def _around(call: invocation.Invocation) -> Iterator[None]:
    from opentelemetry import context

    origin: Any = call.origin
    key = (call.uuid, call.attempt) if origin is None else (origin.id, origin.epoch)
    found = _CONTEXTS.get(key)
    if found is None:
        yield
        return
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)
