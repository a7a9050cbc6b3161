"""OpenTelemetry metrics of messages: counts and durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import wbengine
from wbengine.telemetry import _attributes as attributes
from wbengine.telemetry import _labels, _meters, _metric_definitions

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span

__all__ = ["Instruments", "Operation"]

#: Maximum number of error types; further ones are counted as `other`.
MAX_ERROR_TYPES: Final = 100


class Operation:
    """The span of sending or processing a message, and the measurement of its duration."""

    __slots__ = ("_began", "_record", "span")

    def __init__(self, span: Span, record: Callable[[float, str | None], None]) -> None:
        self.span = span
        self._record = record
        self._began = time.perf_counter_ns()

    def end(self, error: str | None = None) -> None:
        """End the span; `error` is the type of an error."""
        if error is not None:
            attributes.mark_failed(self.span, error)
        took = time.perf_counter_ns() - self._began
        span_start = getattr(
            self.span, "start_time", None
        )  # Only recorded spans of the SDK have it.
        self.span.end(span_start + took if isinstance(span_start, int) else None)
        self._record(took / 1e9, error)


class Instruments:
    """Metrics of a provider (default: the provider of the process). Thread-safe.

    Attributes have few values: the topic, or the queue of Celery's clients, but no ids.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("wbengine", wbengine.__version__, provider)
        self._topic, self._error = (
            _labels.Bounded(_meters.MAX_TOPICS),
            _labels.Bounded(MAX_ERROR_TYPES),
        )
        self._send_duration = _histogram(meter, _metric_definitions.OPERATION_DURATION)
        self._sent = _counter(meter, _metric_definitions.SENT_MESSAGES)
        self._consumed = _counter(meter, _metric_definitions.CONSUMED_MESSAGES)
        self._process_duration = _histogram(meter, _metric_definitions.PROCESS_DURATION)

    def start_sending(self, span: Span, system: str, topic: str) -> Operation:
        """Return the operation that sends a message."""

        def record(seconds: float, error: str | None) -> None:
            attrs = self._attributes(system, "send", topic, error)
            self._sent.add(1, attrs)
            self._send_duration.record(seconds, {**attrs, attributes.OPERATION_TYPE: "send"})

        return Operation(span, record)

    def count_consumed(self, system: str, topic: str) -> None:
        """Count a received message."""
        self._consumed.add(1, self._attributes(system, "receive", topic))

    def start_processing(self, span: Span, system: str, topic: str) -> Operation:
        """Return the operation that processes a message."""

        def record(seconds: float, error: str | None) -> None:
            self._process_duration.record(
                seconds, self._attributes(system, "process", topic, error)
            )

        return Operation(span, record)

    def _attributes(
        self, system: str, operation: str, topic: str, error: str | None = None
    ) -> dict[str, str]:
        attrs = {
            attributes.SYSTEM: system,
            attributes.OPERATION: operation,
            attributes.DESTINATION: self._topic(topic),
        }
        if error is not None:
            attrs[attributes.ERROR] = self._error(error)
        return attrs


def _counter(meter: Meter, name: str) -> Any:
    return meter.create_counter(name, "{message}", _metric_definitions.MESSAGING[name].help)


def _histogram(meter: Meter, name: str) -> Any:
    metric = _metric_definitions.MESSAGING[name]
    try:
        return meter.create_histogram(
            name, "s", metric.help, explicit_bucket_boundaries_advisory=metric.buckets
        )
    except TypeError:  # Versions before 1.30 lack the last parameter.
        return meter.create_histogram(name, "s", metric.help)
