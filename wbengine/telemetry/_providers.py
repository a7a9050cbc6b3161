"""OpenTelemetry providers of a worker."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Final

from wbengine._imports import installing
from wbengine.telemetry import tracing

__all__ = ["Providers", "are_requested"]

LOG: Final = logging.getLogger(__name__)

#: Time for the last export: the receiver may be unreachable.
FLUSH_SECONDS: Final = 5.0

_OTLP_EXPORTERS: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def are_requested(*signals: str) -> bool:
    """Return whether the environment names exporters and opentelemetry-api is installed.

    :param signals: `traces` or `metrics` (default: any of them).
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if not any(any(_exporter_names(signal, "")) for signal in signals or ("traces", "metrics")):
        return False
    try:
        tracing.tracer_of()
    except ImportError:
        return False
    return True


class Providers:
    """The providers of this process, which are created unless the process has set them.

    `opentelemetry-instrument` sets them, for example. New ones use the SDK and the exporters in
    `$OTEL_TRACES_EXPORTER` (default: `traces`) and `$OTEL_METRICS_EXPORTER` (default: none).

    :raises ImportError: if the API, the SDK or an exporter is not installed.
    """

    def __init__(self, traces: str = "otlp") -> None:
        tracing.tracer_of()  # Raises an error with the command for the installation.
        from opentelemetry import metrics, trace

        spans, counts = trace.get_tracer_provider(), metrics.get_meter_provider()
        if isinstance(spans, trace.ProxyTracerProvider):
            exporters = _load_exporters("traces", traces)
            if exporters:
                spans = _tracer_provider(exporters)
                trace.set_tracer_provider(spans)
        if type(counts).__name__ == "_ProxyMeterProvider":  # No provider is set.
            exporters = _load_exporters("metrics", "none")
            if exporters:
                counts = _meter_provider(exporters)
                metrics.set_meter_provider(counts)
        self._providers: tuple[Any, ...] = spans, counts

    def flush(self) -> None:
        """Export the remaining data. After `FLUSH_SECONDS`, the rest is lost."""
        thread = threading.Thread(target=self._flush, name="wbengine-flush", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)
        if thread.is_alive():
            LOG.warning("the last spans and metrics were not exported within %g s", FLUSH_SECONDS)

    def _flush(self) -> None:
        for provider in self._providers:
            if hasattr(provider, "force_flush"):
                provider.force_flush()


# `flush` replaces the export at the exit of the process, which would wait a second time.


def _tracer_provider(exporters: list[Any]) -> Any:
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise _missing_sdk() from None
    provider = TracerProvider(shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    return provider


def _meter_provider(exporters: list[Any]) -> Any:
    try:
        from opentelemetry.sdk.metrics import MeterProvider, export
    except ImportError:
        raise _missing_sdk() from None
    readers = []
    for exporter in exporters:  # Some exporters are readers, such as that for Prometheus.
        instance = exporter()
        is_reader = isinstance(instance, export.MetricReader)
        readers.append(instance if is_reader else export.PeriodicExportingMetricReader(instance))
    return MeterProvider(readers, shutdown_on_exit=False)


def _missing_sdk() -> ImportError:
    command = installing.pip("install", "opentelemetry-sdk", "opentelemetry-exporter-otlp")
    return ImportError(f"traces need the OpenTelemetry SDK and an exporter: {command}")


def _variable(signal: str) -> str:
    return f"OTEL_{signal.upper()}_EXPORTER"


def _exporter_names(signal: str, default: str) -> Iterator[str]:
    """Yield the names of the requested exporters of `traces` or `metrics`."""
    for name in os.environ.get(_variable(signal), default).split(","):
        if name.strip().lower() not in ("", "none"):
            yield name.strip().lower()


def _load_exporters(signal: str, default: str) -> list[Any]:
    return [_load_exporter(signal, name) for name in _exporter_names(signal, default)]


def _load_exporter(signal: str, name: str) -> Any:
    group = f"opentelemetry_{signal}_exporter"
    if name == "otlp":
        protocol = os.environ.get(
            f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
        ) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        name = _OTLP_EXPORTERS.get(protocol, protocol)
    for point in metadata.entry_points(group=group, name=name):
        return point.load()
    installed = sorted({point.name for point in metadata.entry_points(group=group)})
    raise ImportError(
        f"${_variable(signal)} must name an installed exporter, got {name!r}; installed:"
        f" {', '.join(installed)}"
    )
