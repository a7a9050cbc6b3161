"""Workers whose tasks have other parameters than the code of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import broker_url
from tests.support.engine_threads import Running
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, task
from wbengine.engines.worker_based._worker_side import heartbeat
from wbengine.patterns import linear_flow

CALLS: list[str] = []


def ship(code: str) -> type[task.Task]:
    """Return the task `Ship` of the old or the new code."""

    def execute(self: Any, order: int) -> None:
        CALLS.append(code)

    def execute_new(self: Any, order: int, carrier: str) -> None:
        CALLS.append(code)

    body = {"execute": execute if code == "old" else execute_new, "__module__": __name__}
    return type("Ship", (task.Task,), body)


@pytest.mark.parametrize("broker", ["memory", "rowless"])
def test_request_with_new_arguments_waits_for_worker_with_new_code(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    broker: str,
) -> None:
    monkeypatch.setattr(heartbeat, "PERIOD_SECONDS", 0.5)
    CALLS.clear()
    url = broker_url(broker, request, tmp_path)
    new = ship("new")
    inputs = {"order": 7, "carrier": "mail"}
    options: dict[str, Any] = {"engine": "worker-based", "url": url}
    with worker_in_thread(url, ship("old"), name="old"):
        engine = engines.load(linear_flow.Flow("orders").add(new("ship")), inputs=inputs, **options)
        with Running(engine):
            until(lambda: "does not accept the arguments" in caplog.text)
            with worker_in_thread(url, new, name="new"):
                until(lambda: engine.storage.get_flow_state() == "SUCCESS")
    assert CALLS == ["new"]
