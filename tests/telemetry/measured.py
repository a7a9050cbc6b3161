"""What was measured by OpenTelemetry, in this process."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

#: A name, and attributes in order.
Key = tuple[str, tuple[tuple[str, Any], ...]]


class Measured:
    """A provider whose measurements are kept here."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def metrics(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    @property
    def points(self) -> dict[Key, Any]:
        """All points."""
        return {
            (metric.name, tuple(sorted((point.attributes or {}).items()))): point
            for metric in self.metrics
            for point in metric.data.data_points
        }

    @property
    def counts(self) -> dict[Key, int]:
        """How often, of counters and of histograms."""
        return {
            key: point.count if hasattr(point, "count") else point.value
            for key, point in self.points.items()
        }
