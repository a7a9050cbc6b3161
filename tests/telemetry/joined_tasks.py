"""Tasks that return the current span, in any process."""

from __future__ import annotations

import os
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from wbengine import task

#: `(process id, trace id, id of the current span, parent id of a span created here)`.
Place = tuple[int, str, str, str | None]


def place() -> Place:
    """Return the current place, with a span created by a separate provider."""
    current = trace.get_current_span().get_span_context()
    tracer = trace.get_tracer("user", tracer_provider=TracerProvider())
    with tracer.start_as_current_span("own") as span:
        above: Any = getattr(span, "parent", None)
    parent = None if above is None else f"0x{above.span_id:016x}"
    return os.getpid(), f"0x{current.trace_id:032x}", f"0x{current.span_id:016x}", parent


class Tells(task.Task):
    """A task that returns its place."""

    def execute(self) -> list[Any]:
        return list(place())


class TellsLater(task.Task):
    """A coroutine task that returns its place."""

    async def execute(self) -> list[Any]:
        return list(place())
