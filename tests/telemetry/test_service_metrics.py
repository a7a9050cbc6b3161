"""Metrics of operations on many flows and of notifications in a conductor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support import notified, receivers
from tests.support.failed_flows import store_flows
from tests.telemetry import scraping
from wbengine import engines, exceptions, states
from wbengine.conductors import _bulks
from wbengine.conductors.service import ConductorService
from wbengine.jobs import _queues
from wbengine.notifications import _service
from wbengine.operations import _bulk
from wbengine.persistence import backends, base
from wbengine.persistence._bulk_records import Bulk, BulkFlow
from wbengine.telemetry import _fleet_collector, metrics

FACTORY = "tests.cli.shop:order"
Value = Callable[..., float]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


@pytest.fixture
def site() -> Iterator[receivers.Receiver]:
    with receivers.receiver() as opened:
        yield opened


def scraped(collector: metrics.FleetCollector) -> scraping.Samples:
    text, _ = metrics.render(collector, registry=CollectorRegistry())
    return scraping.read(text.decode())


def test_queues_of_flows_are_exported(store: base.Backend) -> None:
    for queue, key in (("default", "ann"), ("default", "bob"), ("reports", "ann")):
        engines.submit(FACTORY, queue=queue, fair_key=key, backend=store)
    engines.submit(FACTORY, queue="later", eta=3600.0, backend=store)
    _queues.JobQueues(store).report(["default"])
    found = scraped(metrics.FleetCollector(job_queues=lambda: _queues.queues_of(store)))

    def value(name: str, **labels: str) -> float:
        return scraping.value(found, f"wbengine_job_queue_{name}", **labels)

    assert value("flows", queue="default", state="waiting") == 2
    assert value("flows", queue="reports", state="waiting") == 1
    assert value("flows", queue="later", state="delayed") == 1
    assert value("flows", queue="later", state="waiting") == 0
    assert abs(value("oldest_timestamp_seconds", queue="default") - time.time()) < 60
    assert value("served", queue="default") == 1
    assert value("served", queue="reports") == 0
    assert b'oldest_timestamp_seconds{queue="later"}' not in text_of(store)


def text_of(store: base.Backend) -> bytes:
    collector = metrics.FleetCollector(job_queues=lambda: _queues.queues_of(store))
    return metrics.render(collector, registry=CollectorRegistry())[0]


def test_queues_beyond_the_limit_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fleet_collector, "MAX_SERIES", 1)
    queues = [
        _queues.JobQueue("a", 1, is_served=True),
        _queues.JobQueue("b", 2, oldest=20.0, is_served=True),
        _queues.JobQueue("c", 3, oldest=10.0),
    ]
    found = scraped(metrics.FleetCollector(job_queues=lambda: queues))
    name = "wbengine_job_queue"
    assert scraping.value(found, f"{name}_flows", queue="other", state="waiting") == 5
    assert scraping.value(found, f"{name}_oldest_timestamp_seconds", queue="other") == 10
    assert scraping.value(found, f"{name}_served", queue="other") == 0
    assert scraping.value(found, f"{name}_served", queue="a") == 1


def test_store_without_queues_exports_none() -> None:
    with backends.backend("memory://") as opened:
        assert b"job_queue_flows{" not in text_of(opened)


def of_bulks(service: _bulks.BulkService) -> Value:
    """Return a function that returns a value of a scrape now."""
    found = scraped(metrics.FleetCollector(bulks=service))

    def value(name: str, **labels: str) -> float:
        return scraping.value(found, f"wbengine_bulk{name}", operation="flow retry", **labels)

    return value


def start(store: base.Backend, uuids: list[str]) -> Bulk:
    flows = [BulkFlow(uuid, states.FAILURE) for uuid in uuids]
    return _bulk.start(store, "flow retry", flows, {})


def carry_out(service: _bulks.BulkService) -> None:
    while service.running()["flow retry"]:
        for run in service._runs.values():
            run.due = 0.0
        service.run_due()


def test_flows_of_operations_are_counted_by_result(store: base.Backend) -> None:
    service = _bulks.BulkService(store, "a")
    value = of_bulks(service)
    assert value("s_running") == value("_flows_total") == value("_errors_total") == 0
    uuids = store_flows(store, 3)
    start(store, [*uuids, "gone"])
    assert of_bulks(service)("s_running") == 1
    carry_out(service)
    value = of_bulks(service)
    assert value("s_running") == 0
    assert value("_flows_total", result="done") == 3
    assert value("_flows_total", result="skipped") == 1


def test_flows_of_another_process_are_not_counted_twice(store: base.Backend) -> None:
    """The other process advances the operation after this one has read it."""
    bulk = start(store, store_flows(store, 30))
    run, other = (_bulk.BulkRun(store, bulk, owner) for owner in "ab")
    assert other.advance()
    other.release()
    assert run.advance()
    assert 0 < other.done < run.bulk.done == run.done + other.done


def test_failed_attempt_of_an_operation_is_counted(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(store, store_flows(store, 2))
    service = _bulks.BulkService(store, "a")

    def fail(*arguments: Any) -> Any:
        raise exceptions.StorageFailure("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(_bulk, "change", fail)
        service.run_due()
    value = of_bulks(service)
    assert value("_errors_total") == 1 and value("_flows_total") == 0
    carry_out(service)
    value = of_bulks(service)
    assert value("_errors_total") == 1 and value("_flows_total", result="done") == 2


def of_notifications(service: _service.DestinationService) -> Value:
    found = scraped(metrics.FleetCollector(notifications=[service]))

    def value(name: str, **labels: str) -> float:
        return scraping.value(found, f"wbengine_notification{name}", destination="ops", **labels)

    return value


def test_sent_messages_and_their_events_are_counted(
    store: base.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = notified.begun(store, notified.webhook(site, tmp_path))
    value = of_notifications(service)
    assert value("s_total") == value("_events_total") == 0
    for name in ("order", "order", "report"):
        notified.failed(store, name)
    notified.run(service)
    notified.run(service)
    value = of_notifications(service)
    assert len(site.requests) == value("s_total", result="sent") == 1
    assert value("_events_total", event="flow_failed", result="sent") == 3
    assert value("_events_total") == 3, "no other event"


def test_failed_attempts_and_dropped_messages_are_counted(
    store: base.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = notified.begun(store, notified.webhook(site, tmp_path))
    notified.failed(store)
    notified.failed(store)
    site.statuses[:] = [500, 500, 500]
    notified.run(service)
    notified.change(store, retry_at=0.0)
    notified.run(service)
    value = of_notifications(service)
    assert value("s_total", result="failed") == 2 and value("s_total") == 2
    assert value("_events_total") == 0, "they can still be sent"
    notified.change(store, retry_at=0.0, failing_since=1.0)
    notified.run(service)
    value = of_notifications(service)
    assert (value("s_total", result="failed"), value("s_total", result="dropped")) == (3, 1)
    assert value("_events_total", event="flow_failed", result="dropped") == 2
    assert value("s_total", result="sent") == 0


def test_events_that_are_not_selected_are_counted_once(
    store: base.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """They are read again until the progress is stored."""
    service = notified.begun(store, notified.webhook(site, tmp_path, events=["worker_lost"]))
    notified.failed(store)
    for _ in range(3):
        service.run_due()
    assert of_notifications(service)("_events_total") == 0
    notified.change(store, stored_at=1.0)
    for _ in range(3):
        service.run_due()
    value = of_notifications(service)
    assert value("_events_total", event="flow_failed", result="not_selected") == 1
    assert value("_events_total") == 1 and site.requests == []


def test_conductor_has_the_services_of_its_metrics(
    store: base.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    conductor = ConductorService(store, notify=notified.webhook(site, tmp_path))
    with contextlib.closing(conductor._board):
        found = scraped(
            metrics.FleetCollector(bulks=conductor.bulks, notifications=conductor.notifications)
        )
    names = {name for name, _ in found}
    assert {
        "wbengine_bulks_running", "wbengine_bulk_flows_total", "wbengine_bulk_errors_total",
        "wbengine_notifications_total", "wbengine_notification_events_total",
    } <= names  # fmt: skip
