"""Metrics and probes of the command `serve`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from wbengine.jobs._queues import queues_of
from wbengine.telemetry import _meters, _probes, metrics
from wbengine.telemetry import _serving as serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wbengine.conductors.service import ConductorService
    from wbengine.persistence import base as persistence

__all__ = ["Watch"]

T = TypeVar("T")


class Watch:
    """The requested telemetry of a conductor service, which must receive `listeners`.

    :param metrics_addr: the address of metrics, or None.
    :param health_addr: the address of probes, or None.
    :raises ImportError: if metrics are requested and prometheus-client is not installed.
    """

    def __init__(
        self, metrics_addr: serving.Address | None, health_addr: serving.Address | None
    ) -> None:
        self._metrics_addr, self._health_addr = metrics_addr, health_addr
        self.listeners: Final = () if metrics_addr is None else (metrics.MetricsListener,)
        if metrics_addr is not None:
            _meters.of()  # This registers the metrics even if no flow runs.

    @contextlib.contextmanager
    def serving(self, conductor: ConductorService, backend: persistence.Backend) -> Iterator[None]:
        """Serve metrics and probes for the length of a `with` block.

        :raises OSError: if an address is not available.
        """
        routes: dict[serving.Address, dict[str, serving.Route]] = {}
        if self._metrics_addr is not None:
            routes.setdefault(self._metrics_addr, {})["/metrics"] = lambda: _metrics(
                backend, conductor
            )
        if self._health_addr is not None:
            routes.setdefault(self._health_addr, {}).update(_probes.routes(conductor))
        servers = serving.start_servers(routes)
        try:
            yield
        finally:
            for server in servers:
                server.stop()


def _metrics(backend: persistence.Backend, conductor: ConductorService) -> serving.Answer:
    def read(work: Callable[[persistence.Connection], T]) -> T:
        with contextlib.closing(backend.get_connection()) as connection:
            return work(connection)

    collector = metrics.FleetCollector(
        waits_for_code=lambda: read(lambda connection: connection.flows_waiting_for_code()),
        backlog=lambda: read(lambda connection: connection.backlog()),
        job_queues=lambda: queues_of(backend),
        oldest_flow=lambda: read(lambda connection: connection.oldest_flow()),
        retention=conductor.retention,
        bulks=conductor.bulks,
        notifications=conductor.notifications,
    )
    return serving.Answer(*metrics.render(collector))
