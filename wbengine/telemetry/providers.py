"""Where spans and measurements of a worker go: to providers of the process, or of its making."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Final

from wbengine.telemetry import tracing

__all__ = ["Providers", "are_wanted"]

LOG: Final = logging.getLogger(__name__)

#: Seconds in which the last of it goes out: whoever takes it may be away.
PATIENCE: Final = 5.0

_OTLP: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def are_wanted(*what: str) -> bool:
    """Whether the environment asks for `traces` or `metrics` (by default: for either), and they can
    be made.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if not any(any(_named(each, "")) for each in what or ("traces", "metrics")):
        return False
    try:
        tracing.tracer_of()
    except ImportError:
        return False
    return True


class Providers:
    """Those of this process: as somebody has set them (such as `opentelemetry-instrument`), or new
    ones of the SDK, with the exporters that `$OTEL_TRACES_EXPORTER` (else `traces`) and
    `$OTEL_METRICS_EXPORTER` (else none) name.

    :raises ImportError: the API, the SDK or an exporter is not installed; says which.
    """

    def __init__(self, traces: str = "otlp") -> None:
        tracing.tracer_of()  # says what to install
        from opentelemetry import metrics, trace

        spans, counts = trace.get_tracer_provider(), metrics.get_meter_provider()
        if isinstance(spans, trace.ProxyTracerProvider):
            exporters = _exporters("traces", traces)
            if exporters:
                spans = _tracer_provider(exporters)
                trace.set_tracer_provider(spans)
        if type(counts).__name__ == "_ProxyMeterProvider":  # nobody has set one
            exporters = _exporters("metrics", "none")
            if exporters:
                counts = _meter_provider(exporters)
                metrics.set_meter_provider(counts)
        self._all: tuple[Any, ...] = spans, counts

    def flush(self) -> None:
        """What is left goes out, for `PATIENCE` seconds: what takes longer is lost."""
        thread = threading.Thread(target=self._flush, name="wbengine-flush", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if thread.is_alive():
            LOG.warning("the last spans and metrics did not go out within %g s", PATIENCE)

    def _flush(self) -> None:
        for provider in self._all:
            if hasattr(provider, "force_flush"):
                provider.force_flush()


# At the end of the process nobody is to wait for them once more: `flush` has.


def _tracer_provider(exporters: list[Any]) -> Any:
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise _no_sdk() from None
    made = TracerProvider(shutdown_on_exit=False)
    for exporter in exporters:
        made.add_span_processor(BatchSpanProcessor(exporter()))
    return made


def _meter_provider(exporters: list[Any]) -> Any:
    try:
        from opentelemetry.sdk.metrics import MeterProvider, export
    except ImportError:
        raise _no_sdk() from None
    readers = []
    for exporter in exporters:  # some are readers themselves, such as that for Prometheus
        made = exporter()
        is_reader = isinstance(made, export.MetricReader)
        readers.append(made if is_reader else export.PeriodicExportingMetricReader(made))
    return MeterProvider(readers, shutdown_on_exit=False)


def _no_sdk() -> ImportError:
    return ImportError("traces would go nowhere: pip install opentelemetry-sdk, and an exporter")


def _variable(what: str) -> str:
    return f"OTEL_{what.upper()}_EXPORTER"


def _named(what: str, default: str) -> Iterator[str]:
    """The names of the exporters of `traces` or `metrics` that are wanted."""
    for name in os.environ.get(_variable(what), default).split(","):
        if name.strip().lower() not in ("", "none"):
            yield name.strip().lower()


def _exporters(what: str, default: str) -> list[Any]:
    """What makes them."""
    return [_exporter(what, name) for name in _named(what, default)]


def _exporter(what: str, name: str) -> Any:
    group = f"opentelemetry_{what}_exporter"
    if name == "otlp":
        spoken = os.environ.get(f"OTEL_EXPORTER_OTLP_{what.upper()}_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
        )
        name = _OTLP.get(spoken, spoken)
    for point in metadata.entry_points(group=group, name=name):
        return point.load()
    known = sorted({point.name for point in metadata.entry_points(group=group)})
    raise ImportError(
        f"no exporter of {what} {name!r} is installed (${_variable(what)});"
        f" there are: {', '.join(known)}"
    )
