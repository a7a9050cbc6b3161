"""What OpenTelemetry measures of messages: how many go and come, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import wbengine
from wbengine.telemetry import attributes, labels, meters, names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span

__all__ = ["Instruments", "Operation"]

#: So many types of errors are told apart; whatever else comes counts as `other`.
ERRORS: Final = 100


class Operation:
    """The span of something that is done with a message, and what is measured of it: as long."""

    __slots__ = ("_began", "_measured", "span")

    def __init__(self, span: Span, measured: Callable[[float, str | None], None]) -> None:
        self.span = span
        self._measured = measured
        self._began = time.perf_counter_ns()

    def end(self, error: str | None = None) -> None:
        """It ended; `error` is the kind of what it failed with."""
        if error is not None:
            attributes.failed(self.span, error)
        took = time.perf_counter_ns() - self._began
        began = getattr(self.span, "start_time", None)  # of the SDK's, which are kept
        self.span.end(began + took if isinstance(began, int) else None)
        self._measured(took / 1e9, error)


class Instruments:
    """Measures by a meter of a provider (that of the process, by default).  Thread-safe.

    What is measured has few attributes: the topic, or the queue of Celery's clients, and no id.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter("wbengine", wbengine.__version__, provider)
        self._topic, self._error = labels.Bounded(meters.TOPICS), labels.Bounded(ERRORS)
        self._sending = _histogram(meter, names.OPERATION_DURATION)
        self._sent = _counter(meter, names.SENT_MESSAGES)
        self._consumed = _counter(meter, names.CONSUMED_MESSAGES)
        self._processing = _histogram(meter, names.PROCESS_DURATION)

    def sending(self, span: Span, system: str, topic: str) -> Operation:
        """A message is about to be sent."""

        def measured(seconds: float, error: str | None) -> None:
            told = self._told(system, "send", topic, error)
            self._sent.add(1, told)
            self._sending.record(seconds, {**told, attributes.OPERATION_TYPE: "send"})

        return Operation(span, measured)

    def consumed(self, system: str, topic: str) -> None:
        """A message came."""
        self._consumed.add(1, self._told(system, "receive", topic))

    def processing(self, span: Span, system: str, topic: str) -> Operation:
        """What a message asks for is about to be done."""

        def measured(seconds: float, error: str | None) -> None:
            self._processing.record(seconds, self._told(system, "process", topic, error))

        return Operation(span, measured)

    def _told(
        self, system: str, operation: str, topic: str, error: str | None = None
    ) -> dict[str, str]:
        told = {
            attributes.SYSTEM: system,
            attributes.OPERATION: operation,
            attributes.DESTINATION: self._topic(topic),
        }
        if error is not None:
            told[attributes.ERROR] = self._error(error)
        return told


def _counter(meter: Meter, name: str) -> Any:
    return meter.create_counter(name, "{message}", names.MESSAGING[name].help)


def _histogram(meter: Meter, name: str) -> Any:
    metric = names.MESSAGING[name]
    try:
        return meter.create_histogram(
            name, "s", metric.help, explicit_bucket_boundaries_advisory=metric.buckets
        )
    except TypeError:  # before 1.30 nobody could be given such advice
        return meter.create_histogram(name, "s", metric.help)
