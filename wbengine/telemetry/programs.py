"""What a program that runs flows does for those who watch it, where its environment says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

__all__ = ["traced"]


@contextlib.contextmanager
def traced(engine: Any) -> Iterator[None]:
    """Trace and measure an engine for the length of a `with` block, if `$OTEL_TRACES_EXPORTER` or
    `$OTEL_METRICS_EXPORTER` name an exporter; at its end all of that goes out.

    Providers are those of the process, else made with these exporters, once.  Without such a name
    nothing is loaded.

    :raises ImportError: the SDK or an exporter is not installed; says which.
    """
    if not (os.environ.get("OTEL_TRACES_EXPORTER") or os.environ.get("OTEL_METRICS_EXPORTER")):
        yield
        return
    from wbengine.telemetry import providers, tracing

    if not providers.are_wanted():
        yield
        return
    made = providers.Providers(traces="none")
    try:
        with tracing.instrument(engine):
            yield
    finally:
        made.flush()
