"""Tasks that tell below which span they run, wherever that is."""

from __future__ import annotations

import os
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from wbengine import task

#: `(process, id of the trace, id of the span that is current, that of the parent of one's own)`.
Place = tuple[int, str, str, str | None]


def place() -> Place:
    """Where this is, with a span of one's own by a provider of one's own."""
    current = trace.get_current_span().get_span_context()
    tracer = trace.get_tracer("user", tracer_provider=TracerProvider())
    with tracer.start_as_current_span("own") as span:
        above: Any = getattr(span, "parent", None)
    parent = None if above is None else f"0x{above.span_id:016x}"
    return os.getpid(), f"0x{current.trace_id:032x}", f"0x{current.span_id:016x}", parent


class Tells(task.Task):
    """Says where it runs."""

    def execute(self) -> list[Any]:
        return list(place())


class TellsLater(task.Task):
    """Says so out of a coroutine."""

    async def execute(self) -> list[Any]:
        return list(place())
