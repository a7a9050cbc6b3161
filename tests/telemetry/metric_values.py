"""Measurements of OpenTelemetry in this process."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

#: A metric name and sorted attributes.
Key = tuple[str, tuple[tuple[str, Any], ...]]


class MetricValues:
    """A meter provider that stores its measurements in memory."""

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
        """All data points by name and attributes."""
        return {
            (metric.name, tuple(sorted((point.attributes or {}).items()))): point
            for metric in self.metrics
            for point in metric.data.data_points
        }

    @property
    def counts(self) -> dict[Key, int]:
        """Values of counters, and numbers of measurements of histograms."""
        return {
            key: point.count if hasattr(point, "count") else point.value
            for key, point in self.points.items()
        }
