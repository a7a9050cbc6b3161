"""Exported spans of this and other processes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass(frozen=True)
class Spent:
    """A completed span."""

    told: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.told["name"])

    @property
    def kind(self) -> str:
        return str(self.told["kind"]).rpartition(".")[2]

    @property
    def trace(self) -> str:
        return str(self.told["context"]["trace_id"])

    @property
    def id(self) -> str:
        return str(self.told["context"]["span_id"])

    @property
    def parent(self) -> str | None:
        found: str | None = self.told["parent_id"]
        return found

    @property
    def links(self) -> list[str]:
        return [link["context"]["span_id"] for link in self.told["links"]]

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.told["attributes"])

    @property
    def failed(self) -> bool:
        return bool(self.told["status"]["status_code"] == "ERROR")

    @property
    def lasted(self) -> float:
        """Duration in seconds."""
        began, ended = (
            datetime.fromisoformat(self.told[name].replace("Z", "+00:00"))
            for name in ("start_time", "end_time")
        )
        return (ended - began).total_seconds()


class Memory:
    """A tracer provider that stores its spans in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[Spent]:
        return [read(span) for span in self._exporter.get_finished_spans()]


def read(span: ReadableSpan) -> Spent:
    return Spent(json.loads(span.to_json()))


def printed(text: str) -> list[Spent]:
    """Return the spans that the console exporter printed among other lines."""
    found = []
    decoder = json.JSONDecoder()
    place = text.find("{\n")
    while place >= 0:
        try:
            told, end = decoder.raw_decode(text, place)
            found.append(Spent(told))
        except ValueError:
            end = place + 1
        place = text.find("{\n", end)
    return found


def tree(spans: Iterable[Spent]) -> Any:
    """Return the names of the roots and, nested and sorted, of their children."""
    below: dict[str | None, list[Spent]] = {}
    known = list(spans)
    ids = {span.id for span in known}
    for span in known:
        below.setdefault(span.parent if span.parent in ids else None, []).append(span)

    def of(id: str | None) -> list[Any]:
        return sorted([span.name, *of(span.id)] for span in below.get(id, ()))

    return of(None)
