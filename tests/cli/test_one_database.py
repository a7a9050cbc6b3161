"""Commands that use one PostgreSQL as store and broker, from its URL alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import ORDER, Command, state
from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines
from wbengine.diagnosis import _broker_checks, findings
from wbengine.patterns import linear_flow

WHERE = linear_flow.Flow("where").add(tasks.Where())
ARGUMENTS = {"inputs": {"rest": 0.0}, "engine": "workers"}


@pytest.fixture
def runtime(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the default folder of brokers is created."""
    folder = home / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def test_commands_meet_in_database_of_flows(
    wbengine: Command, runtime: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", postgresql_url)
    wbengine.begin("worker", "orders", "--tasks", "tests.cli.shop")
    ran = wbengine("flow", "run", ORDER, "--engine", "workers", "--json")
    assert ran.code == 0 and ran.json["results"]["sendd"] == "send", ran
    submitted = wbengine("flow", "submit", ORDER, "--json").json["uuid"]
    wbengine.begin("serve", "--engine", "workers")
    until(lambda: state(wbengine, submitted) == "SUCCESS")
    (worker,) = wbengine("workers", "list", "--json").json["workers"]
    assert worker["topics"] == ["orders"]
    queues = wbengine("queues", "list", "--json").json["queues"]
    assert {queue["kind"] for queue in queues} >= {"requests", "worker"}
    doctor = wbengine("doctor", "--json")
    assert doctor.code == 0, doctor
    texts = [one["text"] for one in doctor.json["findings"] if one["check"] == "broker"]
    shown = f"postgresql://{postgresql_url.partition('@')[2]}"
    assert len(texts) == 1 and texts[0].startswith(f"connected to {shown}")
    assert list(runtime.iterdir()) == []


def test_engine_uses_database_of_its_backend(
    runtime: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker_in_thread(postgresql_url, tasks, threads_count=1):
        engines.run(WHERE, backend=postgresql_url, **ARGUMENTS)
        engines.run(WHERE, backend={"connection": postgresql_url}, **ARGUMENTS)
        monkeypatch.setenv("WBENGINE_PERSISTENCE", postgresql_url)
        engines.run(WHERE, **ARGUMENTS)
    assert list(runtime.iterdir()) == []


def test_engine_with_other_backend_uses_folder(
    home: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", "postgresql://nobody@127.0.0.1:1/none")
    with worker_in_thread(f"filesystem://{runtime}/wbengine", tasks, threads_count=1):
        engines.run(WHERE, backend=f"sqlite:///{home}/flows.db", **ARGUMENTS)


def test_doctor_reports_folder_as_broker_beside_mysql(runtime: Path) -> None:
    place = findings.Place(persistence="mysql://flows@db/flows")
    connected, note = _broker_checks.check_connection(place)
    assert connected.good is True and str(runtime) in connected.text
    assert note.good is None and "MySQL stores flows but carries no messages" in note.text
    assert note.fix is not None and "set --url" in note.fix
    (connected,) = _broker_checks.check_connection(findings.Place(persistence="dir:///srv/flows"))
