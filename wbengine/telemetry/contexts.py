"""Which span a call belongs to, so that what its body traces is found below it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from wbengine import running

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from wbengine import invocation

__all__ = ["TRACEPARENT", "Key", "carried", "enter", "handed_on", "leave", "read"]

Key = running.Key

#: What a context is called in the headers of messages, and in what is kept with a flow.
TRACEPARENT: Final = "traceparent"

_CONTEXTS: Final[dict[Key, Context]] = {}


def enter(key: Key, context: Context) -> None:
    """From now on calls known by `key` run in `context`, in this process and in its children."""
    _CONTEXTS[key] = context
    running.around, running.sending, running.tying = _around, _sending, _tie


def leave(key: Key) -> None:
    """Undo `enter`; idempotent."""
    _CONTEXTS.pop(key, None)


def carried(context: Context) -> dict[str, str]:
    """The span of a context as text, by W3C's words for it; nothing, where there is none."""
    from opentelemetry.trace.propagation import tracecontext

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier, context)
    return carrier


def handed_on(context: Context) -> dict[str, str]:
    """The headers of a message that belongs below a span, by the propagators of this process."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return carrier


def read(carrier: dict[str, str]) -> Context:
    """A context with the span that is `carried`."""
    from opentelemetry import context
    from opentelemetry.trace.propagation import tracecontext

    return tracecontext.TraceContextTextMapPropagator().extract(carrier, context.Context())


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


def _sending(key: Key, call: running.Call) -> running.Call:
    found = _CONTEXTS.get(key)
    if found is None:
        return call
    fn, args = call
    # Behind the others: errors name arguments by their places.
    return _called, (*args, key, carried(found), fn)


def _called(*given: Any) -> Any:
    """Make a call in a child, below a span of its parent; the pool adds its `emit`."""
    *args, key, carrier, fn, emit = given
    enter(key, read(carrier))
    try:
        return fn(*args, emit)
    finally:
        leave(key)


def _tie(headers: dict[str, Any]) -> None:
    from opentelemetry import propagate

    if TRACEPARENT not in headers:  # else somebody said what it belongs to
        propagate.inject(headers)
