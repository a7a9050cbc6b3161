"""Reports of a conductor service that it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from tests.support.waiting import until
from wbengine.conductors import service as services
from wbengine.jobs._queues import JobQueues
from wbengine.persistence import backends as stores


def test_service_reports_during_a_long_search_for_flows_without_a_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reports, released = list[Any](), threading.Event()
    report = JobQueues.report

    def record(self: JobQueues, names: Any) -> None:
        report(self, names)
        reports.append(names)

    monkeypatch.setattr(JobQueues, "report", record)
    monkeypatch.setattr(services.ConductorService, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(services.ConductorService, "_resume_lost", lambda self: released.wait(60))
    with (
        stores.backend(f"sqlite:///{tmp_path}/flows.db") as store,
        conducted.running(services.ConductorService(store)),
    ):
        try:
            until(lambda: len(reports) > 2, 1)
        finally:
            released.set()
