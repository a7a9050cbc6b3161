"""Telemetry of programs that run flows, configured by environment variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

__all__ = ["traced"]


@contextlib.contextmanager
def traced(engine: Any) -> Iterator[None]:
    """Trace and measure an engine for the length of a `with` block, if the environment requests it.

    This needs `$OTEL_TRACES_EXPORTER` or `$OTEL_METRICS_EXPORTER`; otherwise nothing is imported.
    The providers of the process are used, or are created with these exporters, once. The end of the
    block exports all data.

    :raises ImportError: if the SDK or an exporter is not installed.
    """
    if not (os.environ.get("OTEL_TRACES_EXPORTER") or os.environ.get("OTEL_METRICS_EXPORTER")):
        yield
        return
    from wbengine.telemetry import _providers, tracing

    if not _providers.are_requested():
        yield
        return
    process_providers = _providers.Providers(traces="none")
    try:
        with tracing.instrument(engine):
            yield
    finally:
        process_providers.flush()
