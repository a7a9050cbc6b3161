"""Span contexts of calls: spans that a task creates become children of the span of its call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from wbengine import running

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from wbengine._calls import invocation

__all__ = ["TRACEPARENT", "Key", "to_headers", "enter", "inject_headers", "leave", "from_headers"]

Key = running.Key

#: Name of a context in headers of messages and in the metadata of flows.
TRACEPARENT: Final = "traceparent"

_CONTEXTS: Final[dict[Key, Context]] = {}


def enter(key: Key, context: Context) -> None:
    """Run calls with this key in `context`, in this process and in its child processes."""
    _CONTEXTS[key] = context
    running.around, running.sending, running.header_hook = _around, _sending, _tie


def leave(key: Key) -> None:
    """Undo `enter`. Idempotent."""
    _CONTEXTS.pop(key, None)


def to_headers(context: Context) -> dict[str, str]:
    """Return the span of a context as W3C headers (empty without a span)."""
    from opentelemetry.trace.propagation import tracecontext

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier, context)
    return carrier


def inject_headers(context: Context) -> dict[str, str]:
    """Return headers for a message below the span, in the formats of this process."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return carrier


def from_headers(carrier: dict[str, str]) -> Context:
    """Return a context with the span of a W3C header."""
    from opentelemetry import context
    from opentelemetry.trace.propagation import tracecontext

    return tracecontext.TraceContextTextMapPropagator().extract(carrier, context.Context())


@contextlib.contextmanager
def _around(call: invocation.Invocation) -> Iterator[None]:
    from opentelemetry import context

    origin: Any = call.origin
    key = (call.uuid, call.attempt) if origin is None else (origin.id, origin.epoch)
    stored = _CONTEXTS.get(key)
    if stored is None:
        yield
        return
    token = context.attach(stored)
    try:
        yield
    finally:
        context.detach(token)


def _sending(key: Key, call: running.Call) -> running.Call:
    stored = _CONTEXTS.get(key)
    if stored is None:
        return call
    fn, args = call
    # Appended, because errors name arguments by position.
    return _call_in_child, (*args, key, to_headers(stored), fn)


def _call_in_child(*arguments: Any) -> Any:
    """Make a call in a child process, below a span of the parent. The pool appends `emit`."""
    *args, key, carrier, fn, emit = arguments
    enter(key, from_headers(carrier))
    try:
        return fn(*args, emit)
    finally:
        leave(key)


def _tie(headers: dict[str, Any]) -> None:
    from opentelemetry import propagate

    if TRACEPARENT not in headers:  # Otherwise, the caller has set the context.
        propagate.inject(headers)
